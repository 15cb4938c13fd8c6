"""Writes staged rows as Parquet with pyarrow: the one module of the sinks that needs it. Knows no folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, Final, assert_never

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import SinkError
from pipeline.sinks.columns import ColumnType, ListOf, ObjectOf, Scalar
from pipeline.sinks.committed import CommittedFile
from pipeline.wording import counted

_ROW_GROUP_BYTES: Final = 64 << 20


def write_parquet(out: BinaryIO, file: CommittedFile | None, types: dict[str, ColumnType]) -> None:
    """All rows of the file (None: no rows) with these columns, in row groups of bounded size.

    Raises SinkError, with the column's name, for a number that its type cannot hold; else as
    `CommittedFile.chunks` does; and OSError.
    """
    schema = arrow_schema(types)
    with pq.ParquetWriter(out, schema) as writer:
        if file is None:
            return
        for group in _row_groups(file, lambda rows: _batch(rows, types, schema), schema):
            writer.write_table(group)


def write_fitted(out: BinaryIO, file: CommittedFile, schema: Any) -> None:
    """All rows of the file with the columns of a table that is there, whose types can hold them.

    Raises SinkError, with the column's name, for a value that does not fit; else as `write_parquet` does.
    """
    with pq.ParquetWriter(out, schema) as writer:
        for group in _row_groups(file, lambda rows: _fitted_batch(rows, schema), schema):
            writer.write_table(group)


def arrow_schema(types: Mapping[str, ColumnType]) -> Any:
    """The columns in Arrow."""
    return pa.schema([(name, _arrow_type(kind)) for name, kind in types.items()])


def count_rows(path: str) -> int:
    """Rows of a Parquet file, from its footer."""
    return int(pq.read_metadata(path).num_rows)


def _row_groups(file: CommittedFile, make: Callable[[list[dict[str, Any]]], Any], schema: Any) -> Iterator[Any]:
    pending, size = [], 0
    for rows in file.rows():
        batch = make(rows)
        pending.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(pending, schema)
            pending, size = [], 0
    if pending:
        yield pa.Table.from_batches(pending, schema)


def _batch(rows: list[dict[str, Any]], types: dict[str, ColumnType], schema: Any) -> Any:
    arrays = [_array([row.get(name) for row in rows], name, kind) for name, kind in types.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: list[Any], name: str, kind: ColumnType) -> Any:
    if kind is Scalar.NUMBER:
        values = _as_floats(values)
    try:
        return pa.array(values, _arrow_type(kind))
    except (pa.ArrowException, OverflowError) as error:
        raise SinkError(
            f"the column {name!r} cannot be a column of a Parquet table: {error}",
            "integers must fit into 64 bits: turn larger ones into text with .map before the sink",
        ) from error


def _fitted_batch(rows: list[dict[str, Any]], schema: Any) -> Any:
    arrays = [_fitted_array([row.get(field.name) for row in rows], field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fitted_array(values: list[Any], field: Any) -> Any:
    try:
        if pa.types.is_date(field.type) or pa.types.is_timestamp(field.type):
            array = _times(pa.array(values, pa.string()), field.type)
        else:
            array = pa.array(_as_floats(values) if pa.types.is_floating(field.type) else values, field.type)
    except (pa.ArrowException, OverflowError) as error:
        raise SinkError(
            f"the column {field.name!r} of the table is {field.type}, which does not hold all values: {error}",
            "change them with .map before the sink, or write to another table",
        ) from error
    if pa.types.is_float32(field.type) and pc.any(pc.is_inf(array)).as_py():  # no JSON has infinity
        raise SinkError(
            f"the column {field.name!r} of the table is {field.type}, which does not hold all values: one is too large",
            "change them with .map before the sink, or write to another table",
        )
    if not field.nullable and array.null_count:
        raise SinkError(
            f"the column {field.name!r} of the table may not be null, and is in {counted(array.null_count, 'row')}",
            "leave such rows out with .filter before the sink, or give them a value with .map",
        )
    return array


def _times(texts: Any, kind: Any) -> Any:
    """In a column without a zone a time with one stands as UTC, as it is read from there."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        if pa.types.is_date(kind) or kind.tz is not None:
            raise
        return texts.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)


def _as_floats(values: list[Any]) -> list[float | None]:
    """Arrow refuses an integer that a float cannot hold exactly; JSON readers round it."""
    return [None if value is None else float(value) for value in values]


def _arrow_type(kind: ColumnType) -> Any:
    match kind:
        case Scalar.NOTHING | Scalar.TEXT:
            return pa.string()
        case Scalar.FLAG:
            return pa.bool_()
        case Scalar.INTEGER:
            return pa.int64()
        case Scalar.NUMBER:
            return pa.float64()
        case ListOf(item):
            return pa.list_(_arrow_type(item))
        case ObjectOf(fields):
            return pa.struct([(name, _arrow_type(field)) for name, field in fields.items()])
        case _:
            assert_never(kind)
