"""Rows of a frame as records of a job's source: which column is what, and the rows made plain data. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import lt
from typing import Any, Final

import msgspec
import pyarrow as pa

from pipeline.codec import decode_value, shown
from pipeline.errors import DecodingError, EncodingError, ProducerError
from pipeline.keying import check_keys
from pipeline.producing.outgoing import ID_BYTES
from pipeline.records import Batch
from pipeline.sources.parquetrows import is_supported, plain_column
from pipeline.spark.datasource.options import Options

CHUNK_RECORDS: Final = 2_500
"""Records of one append, counted from the beginning of a partition: the same at every attempt."""

_BESIDE_VALUE: Final = ("key", "time", "id", "packed")


@dataclass(frozen=True, slots=True)
class Layout:
    """What the columns of a frame are. With `value` the record is that column; else an object of all `fields`.

    with_keys: the source takes {"key", "value"}. is_json: `value` is JSON text. order: columns that rows are sorted by.
    """

    value: str | None
    fields: tuple[str, ...]
    key: str | None
    time: str | None
    id: str | None
    packed: str | None
    with_keys: bool
    is_json: bool
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Records:
    """A chunk: records with their own ids, and for each what the frame is sorted by."""

    batch: Batch
    ids: list[str | None] | None
    order: Sequence[Any]


def layout_of(schema: Any, options: Options, *, with_keys: bool) -> Layout:
    """`schema` is Arrow's. Raises ProducerError, which names the column."""
    names = list(schema.names)
    for field in schema:
        if not is_supported(field.type):
            raise ProducerError(
                f"column {field.name!r} is {field.type}, which no job takes", hint="cast it, or drop it"
            )
    is_value = "value" in names
    chosen = {role: _chosen(options, role, names, is_value) for role in ("key", "time", "id")}
    order = tuple(name.strip() for name in options.text("order_by").split(",") if name.strip())
    for name in order:
        _check_there(name, "order_by", names)
    if chosen["key"] and not with_keys:
        raise ProducerError(
            f"the source takes no keys, and column {chosen['key']!r} is one",
            hint="make it read.producer(with_keys=True), or leave the column out",
        )
    if with_keys and not chosen["key"]:
        raise ProducerError("the source takes keys", hint="option key_column names the column that holds them")
    _check_types(schema, chosen)
    packed = "packed" if is_value and "packed" in names else None
    known = {"value", packed, *chosen.values(), *order}
    odd = [name for name in names if is_value and name not in known]
    if odd:
        raise ProducerError(
            f"beside a column 'value' there may be {', '.join(_BESIDE_VALUE)} only, not {odd[0]!r}",
            hint="drop it; or rename 'value': then all columns together are the record",
        )
    fields = () if is_value else tuple(name for name in names if not (with_keys and name == chosen["key"]))
    is_json = options.text("value_as") == "json"
    if is_json and (not is_value or not pa.types.is_string(schema.field("value").type)):
        raise ProducerError("option 'value_as' is about a column 'value' of text", hint="leave it out")
    return Layout(
        value="value" if is_value else None,
        fields=fields,
        key=chosen["key"],
        time=chosen["time"],
        id=chosen["id"],
        packed=packed,
        with_keys=with_keys,
        is_json=is_json,
        order=order,
    )


def _chosen(options: Options, role: str, names: list[str], is_value: bool) -> str | None:
    name = options.text(f"{role}_column")
    if name:
        _check_there(name, f"{role}_column", names)
        return name
    return role if is_value and role in names else None


def _check_there(name: str, option: str, names: list[str]) -> None:
    if name not in names:
        raise ProducerError(f"option {option!r}: the frame has no column {name!r}", hint=f"it has {', '.join(names)}")


def _check_types(schema: Any, chosen: dict[str, str | None]) -> None:
    plain = (pa.types.is_string, pa.types.is_integer, pa.types.is_binary)
    tests: dict[str, tuple[Callable[[Any], bool], str]] = {
        "key": (lambda kind: any(test(kind) for test in plain), "text, an integer or binary"),
        "time": (pa.types.is_timestamp, "a timestamp"),
        "id": (pa.types.is_string, "text"),
    }
    for role, name in chosen.items():
        test, wanted = tests[role]
        if name is not None and not test(schema.field(name).type):
            raise ProducerError(f"column {name!r} is {schema.field(name).type}; a record's {role} is {wanted}")


def chunks_of(batches: Iterator[Any]) -> Iterator[Any]:
    """Arrow batches of CHUNK_RECORDS rows, the last one shorter, however the rows have come."""
    pending: list[Any] = []
    count = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, CHUNK_RECORDS - count)
            pending.append(part)
            count, start = count + part.num_rows, start + part.num_rows
            if count == CHUNK_RECORDS:
                yield _whole(pending)
                pending, count = [], 0
    if pending:
        yield _whole(pending)


def _whole(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def records_of(layout: Layout, rows: Any, first: int) -> Records:
    """`first` is the number of the first row in its partition, for messages. Raises ProducerError."""
    column = {name: _plain(rows, name, first) for name in _read(layout)}
    values = _values(layout, column, first) if layout.value or layout.fields else [{} for _ in range(rows.num_rows)]
    if layout.with_keys and layout.key is not None:
        keys = column[layout.key]
        try:
            check_keys(keys)
        except EncodingError as error:
            raise ProducerError(
                f"row {first + error.index}: the key is {shown(keys[error.index], 80)}: {error}"
            ) from error
        values = [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]
    times = None if layout.time is None else _times(rows.column(layout.time), layout.time, first)
    ids = None if layout.id is None else _ids(column[layout.id], first)
    sorted_by = [rows.column(name).to_pylist() for name in layout.order]
    order = sorted_by[0] if len(sorted_by) == 1 else list(zip(*sorted_by, strict=True))
    return Records(Batch(values, times=times), ids, order)


def _plain(rows: Any, name: str, first: int) -> list[Any]:
    try:
        return plain_column(rows.column(name), rows.schema.field(name).type)
    except EncodingError as error:
        raise ProducerError(f"row {first + error.index}: column {name!r}: {error}", hint=error.hint) from error


def _read(layout: Layout) -> list[str]:
    names = (layout.value, *layout.fields, layout.key, layout.id, layout.packed)
    return list(dict.fromkeys(name for name in names if name is not None))


def _values(layout: Layout, column: dict[str, list[Any]], first: int) -> list[Any]:
    if layout.value is None:
        names = layout.fields
        return [dict(zip(names, row, strict=True)) for row in zip(*(column[name] for name in names), strict=True)]
    values = column[layout.value]
    if layout.is_json:
        values = _from_json(values, first)
    if layout.packed is None:
        return values
    return [
        value if data is None else _unpacked(data, first + index)
        for index, (value, data) in enumerate(zip(values, column[layout.packed], strict=True))
    ]


def _from_json(texts: list[str | None], first: int) -> list[Any]:
    found = []
    for index, text in enumerate(texts):
        try:
            found.append(None if text is None else msgspec.json.decode(text))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ProducerError(f"row {first + index}: value is no JSON: {error}: {shown(text, 80)}") from error
    return found


def _unpacked(data: bytes, row: int) -> Any:
    try:
        return decode_value(data)
    except DecodingError as error:
        raise ProducerError(f"row {row}: packed: {error}") from error


def _times(column: Any, name: str, first: int) -> list[int]:
    if column.null_count:
        raise ProducerError(
            f"row {first + column.is_null().to_pylist().index(True)}: column {name!r} is null, and a record has a time"
        )
    return column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]


def _ids(column: list[str | None], first: int) -> list[str | None]:
    for index, text in enumerate(column):
        if text is not None and not 0 < len(text.encode()) <= ID_BYTES:
            raise ProducerError(f"row {first + index}: an id has 1 to {ID_BYTES:,} bytes: {shown(text, 80)}")
    return column


def check_order(layout: Layout, order: Sequence[Any], before: Any, first: int) -> None:
    """Returns when the rows ascend strictly, behind `before` if that is not None. Raises ProducerError."""
    rows = list(order) if before is None else [before, *order]
    try:
        if all(map(lt, rows, rows[1:])):
            if rows and not _has_null(rows[0]):
                return
            at = 0
        else:
            at = next(index for index, (one, other) in enumerate(pairwise(rows)) if not one < other)
    except TypeError:
        at = next((index for index, row in enumerate(rows) if _has_null(row)), 0)
    columns = ", ".join(layout.order)
    numbered = first + at - (before is not None)
    raise ProducerError(
        f"rows {numbered} and {numbered + 1} of a partition are not in the order of {columns}, each once and none null:"
        f" {shown(rows[at], 80)}, then {shown(rows[at + 1], 80) if at + 1 < len(rows) else 'nothing'}",
        hint=f"df.repartition(8, {columns!r}).sortWithinPartitions({columns!r}), by columns that no two rows share;"
        " or use staging",
    )


def _has_null(row: Any) -> bool:
    return row is None or (isinstance(row, tuple) and None in row)
