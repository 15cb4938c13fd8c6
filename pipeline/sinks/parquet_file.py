"""Writes staged rows as Parquet with pyarrow: the one module of the sinks that needs it. Knows no folders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final, assert_never

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import SinkError
from pipeline.sinks.columns import ColumnType, ListOf, ObjectOf, Scalar
from pipeline.sinks.committed import CommittedFile

_ROW_GROUP_BYTES: Final = 64 << 20


def write_parquet(out: BinaryIO, file: CommittedFile | None, types: dict[str, ColumnType]) -> None:
    """All rows of the file (None: no rows) with these columns, in row groups of bounded size.

    Raises SinkError, with the column's name, for a number that its type cannot hold; else as
    `CommittedFile.chunks` does; and OSError.
    """
    schema = pa.schema([(name, _arrow_type(kind)) for name, kind in types.items()])
    with pq.ParquetWriter(out, schema) as writer:
        if file is None:
            return
        for group in _row_groups(file, types, schema):
            writer.write_table(group)


def count_rows(path: str) -> int:
    """Rows of a Parquet file, from its footer."""
    return int(pq.read_metadata(path).num_rows)


def _row_groups(file: CommittedFile, types: dict[str, ColumnType], schema: Any) -> Iterator[Any]:
    pending, size = [], 0
    for rows in file.rows():
        batch = _batch(rows, types, schema)
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
        # Arrow refuses an integer that a float cannot hold exactly; JSON readers round it.
        values = [None if value is None else float(value) for value in values]
    try:
        return pa.array(values, _arrow_type(kind))
    except (pa.ArrowException, OverflowError) as error:
        raise SinkError(
            f"the column {name!r} cannot be a column of a Parquet table: {error}",
            "integers must fit into 64 bits: turn larger ones into text with .map before the sink",
        ) from error


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
