"""Parquet rows to dicts of plain values, from the Arrow batches of both readers. Needs the extra `spark`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from pipeline.errors import EncodingError, EnvironmentFault, InputError
from pipeline.records import Batch
from pipeline.sources.feed import BATCH_RECORDS
from pipeline.sources.splits import Split, check_unchanged

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise EnvironmentFault("reading Parquet needs pyarrow", hint="pip install 'celeriac[spark]'") from error

_DAMAGED: Final = "the file is damaged, cut off, or no Parquet file: write it again"


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    """Each row is a dict of the chosen columns.

    Numbers, booleans, text and bytes are themselves. A timestamp is a datetime in UTC to the microsecond (one
    without a zone counts as UTC), a date is ISO text, a decimal its text. Lists stay, structs and maps are dicts.
    `schema` is that of the files, in Arrow, cut to the columns.
    """

    schema: Any

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def describe(self) -> str:
        return ", ".join(f"{field.name}: {field.type}" for field in self.schema)

    def stored(self, file: Any) -> list[str]:
        """The columns to read of a file that has this schema."""
        return self.columns

    def whole(self, batch: Any, path: str) -> Any:
        """The columns of the format, by position, from those that were read of the file."""
        return batch.select(self.columns)


@dataclass(frozen=True, slots=True)
class TableChunk:
    """Rows of a split. The batch has the columns of the format, by position. A `pipeline.sources.feed.Chunk`."""

    form: ParquetFormat
    batch: Any

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def size(self) -> int:
        return int(self.batch.nbytes)

    def part(self, start: int, stop: int) -> TableChunk:
        return TableChunk(self.form, self.batch.slice(start, stop - start))

    def place(self, index: int) -> str:
        return ""

    def decode(self) -> Batch:
        """A row with a value that no record can hold is a fault."""
        names, faults = self.form.columns, dict[int, str]()
        columns = [self._column(number, faults) for number in range(len(names))]
        values: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        for index in faults:
            values[index] = repr(values[index])
        return Batch(values, faults=faults)

    def _column(self, number: int, faults: dict[int, str]) -> list[Any]:
        field, array = self.form.schema.field(number), self.batch.column(number)
        found: list[Any] = []
        while True:
            try:
                return found + plain_column(array.slice(len(found)), field.type)
            except EncodingError as error:
                at = len(found) + error.index
                found += [*plain_column(array.slice(len(found), error.index), field.type), None]
                faults.setdefault(at, f"column {field.name!r}: {error}")

    def raw(self, index: int) -> str:
        return repr(self.decode().values[index])


def parquet_format(files: Sequence[Path], columns: Sequence[str] | None) -> ParquetFormat:
    """Raises InputError for what is no Parquet, files that differ, and columns that cannot be read."""
    first = _schema(files[0])
    for file in files[1:]:
        if not _schema(file).equals(first):
            raise InputError(
                f"{file} has other columns than {files[0]}",
                hint="read files with different columns as two sources",
            )
    for name in columns or ():
        if name not in first.names:
            raise InputError(f"there is no column {name!r}", hint=f"{files[0]} has: {', '.join(first.names)}")
    fields = [first.field(name) for name in (columns or first.names)]
    for field in fields:
        if not is_supported(field.type):
            raise InputError(
                f"{files[0]}: column {field.name!r} is of the type {field.type}, which is not supported",
                hint="choose other columns with columns=[...]",
            )
    return ParquetFormat(pa.schema(fields))


def split_rows(split: Split, form: ParquetFormat) -> Iterator[TableChunk]:
    """The rows of the row groups whose middle lies in the block, which are those that Spark reads of it."""
    check_unchanged(split)
    try:
        with pq.ParquetFile(split.path) as file:
            groups = [
                number
                for number in range(file.metadata.num_row_groups)
                if split.start <= _middle(file.metadata.row_group(number)) < split.end
            ]
            if groups:
                columns = form.stored(file.schema_arrow)
                for batch in file.iter_batches(BATCH_RECORDS, row_groups=groups, columns=columns):
                    yield TableChunk(form, form.whole(batch, split.path))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{split.path} cannot be read: {error}", hint=_DAMAGED) from error
    check_unchanged(split)


def _schema(file: Path) -> Any:
    try:
        return pq.read_schema(file).remove_metadata()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file} is no Parquet file that can be read: {error}", hint=_DAMAGED) from error


def _middle(group: Any) -> int:
    """As parquet-java has it: from the first column's first page and the compressed size of all columns."""
    first = group.column(0)
    start = first.data_page_offset
    if first.dictionary_page_offset is not None and 0 < first.dictionary_page_offset < start:
        start = first.dictionary_page_offset
    size = sum(group.column(number).total_compressed_size for number in range(group.num_columns))
    return int(start + size // 2)


def is_supported(kind: Any, is_nested: bool = False) -> bool:
    """Whether `plain_column` takes a column of this Arrow type."""
    if pa.types.is_dictionary(kind):
        return is_supported(kind.value_type, is_nested)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return is_supported(kind.value_type, True)
    if pa.types.is_struct(kind):
        return all(is_supported(field.type, True) for field in kind)
    if pa.types.is_map(kind):
        return pa.types.is_string(kind.key_type) and is_supported(kind.item_type, True)
    if pa.types.is_timestamp(kind):
        return not is_nested or kind.unit != "ns"
    if pa.types.is_uint64(kind):
        return not is_nested
    tests = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_float32,
        pa.types.is_float64,
        pa.types.is_date32,
    )
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in (*tests, *texts, pa.types.is_decimal128))


def plain_column(array: Any, kind: Any) -> list[Any]:
    """The plain values of a column of the file's type `kind`; Spark hands over some types as another one.

    Raises EncodingError, with its index, for a date or time that Python has not.
    """
    try:
        return _plain_column(array, kind)
    except (OverflowError, ValueError) as error:
        index = next(index for index in range(len(array)) if not _is_plain(array.slice(index, 1), kind))
        text = " ".join(str(array.slice(index, 1)).split())
        raise EncodingError(
            f"a date or time outside of the years 1 to 9999: {text}",
            index,
            hint="leave such rows out before they get here, or make the column text or a number",
        ) from error


def _is_plain(array: Any, kind: Any) -> bool:
    try:
        _plain_column(array, kind)
    except (OverflowError, ValueError):
        return False
    return True


def _plain_column(array: Any, kind: Any) -> list[Any]:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_timestamp(kind):
        return _instants(array, kind)
    if pa.types.is_uint64(kind):
        return [None if value is None else int(value) for value in array.to_pylist()]
    if pa.types.is_decimal(kind) or pa.types.is_date(kind) or pa.types.is_nested(kind):
        plain = _plain_for(array.type)
        return [plain(value) for value in array.to_pylist()]
    values: list[Any] = array.to_pylist()
    return values


def _instants(array: Any, kind: Any) -> list[datetime | None]:
    if pa.types.is_integer(array.type):  # Spark reads nanoseconds as numbers
        array = array.cast(pa.timestamp(kind.unit))
    if array.type.tz is not None:
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))
    micros = array.cast(pa.timestamp("us"), safe=array.type.unit != "ns")
    return [None if value is None else value.replace(tzinfo=UTC) for value in micros.to_pylist()]


def _plain_for(kind: Any) -> Callable[[Any], Any]:
    if pa.types.is_map(kind):
        inner = _plain_for(kind.item_type)
        return lambda value: None if value is None else {key: inner(item) for key, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _plain_for(kind.value_type)
        return lambda value: None if value is None else [inner(item) for item in value]
    if pa.types.is_struct(kind):
        parts = {field.name: _plain_for(field.type) for field in kind}
        return lambda value: None if value is None else {name: part(value[name]) for name, part in parts.items()}
    return _plain


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        case date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")  # `str` makes 0E-8 of 0.00000000
        case _:
            return value
