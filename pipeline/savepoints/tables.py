"""The Parquet files of savepoints. Knows no store and no meaning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import SavepointError
from pipeline.savepoints.manifest import PartFile
from pipeline.savepoints.places import Draft, Place

_ROWS: Final = 20_000
_GROUP_BYTES: Final = 16 << 20
_FILE_BYTES: Final = 256 << 20
"""Where the next file begins; before compression."""

_PAGE_ROWS: Final = 5_000
"""How many are read at a time, of one row group, which bounds their bytes."""

_REPEATED: Final = frozenset({"hash", "stage", "partition", "operator", "group", "kind", "source"})
"""Columns of few values. Of others a dictionary is only begun, at some cost, and given up."""

SCHEMAS: Final[Mapping[str, Any]] = {
    "facts": pa.schema([("hash", pa.string()), ("field", pa.binary()), ("value", pa.binary())]),
    "in_flight": pa.schema(
        [
            ("stage", pa.string()),
            ("partition", pa.int32()),
            ("entry", pa.string()),
            ("header", pa.string()),
            ("payload", pa.binary()),
        ]
    ),
    "state": pa.schema(
        [
            ("stage", pa.string()),
            ("operator", pa.string()),
            ("group", pa.int32()),
            ("key", pa.string()),
            ("value", pa.string()),
            ("packed", pa.binary()),
        ]
    ),
    "timers": pa.schema(
        [
            ("stage", pa.string()),
            ("operator", pa.string()),
            ("group", pa.int32()),
            ("key", pa.string()),
            ("due", pa.int64()),
        ]
    ),
    "letters": pa.schema([("id", pa.string()), ("field", pa.binary()), ("value", pa.binary())]),
    "held": pa.schema(
        [
            ("stage", pa.string()),
            ("group", pa.int32()),
            ("kind", pa.string()),
            ("field", pa.binary()),
            ("value", pa.binary()),
        ]
    ),
    "ids": pa.schema([("source", pa.string()), ("group", pa.int32()), ("digest", pa.binary()), ("seen", pa.int64())]),
}


class TableWriter:
    """Appends rows to one table; `close` gives its files. Memory is bounded by two row groups.

    One of them is packed and written by a thread while the next is gathered; what that raises is raised by a later
    call. Either `close` or `abandon` is the last.
    """

    def __init__(self, draft: Draft, table: str) -> None:
        self._draft = draft
        self._table = table
        self._schema = SCHEMAS[table]
        self._pending: list[list[Any]] = [[] for _ in self._schema]
        self._size = 0
        self._file: _Hashed | None = None
        self._writer: Any = None
        self._rows = 0
        self._parts: list[PartFile] = []
        self._thread = ThreadPoolExecutor(1, "savepoint")
        self._under_way: Future[None] | None = None

    def add(self, *row: Any) -> None:
        """A row with a value for each column; those that may be long come last in all tables."""
        self.add_page(*((value,) for value in row))

    def add_page(self, *columns: Sequence[Any]) -> None:
        """As many rows as each column has values."""
        for pending, column in zip(self._pending, columns, strict=True):
            pending.extend(column)
        self._size += _size_of(columns[-1]) + _size_of(columns[-2])
        if self._size >= _GROUP_BYTES or len(self._pending[0]) >= _ROWS:
            self._await()
            self._under_way = self._thread.submit(self._write, self._taken())

    def close(self) -> tuple[PartFile, ...]:
        """A table without rows has one file, so that others can read it too."""
        self._await()
        self._thread.shutdown()
        if self._pending[0] or not self._parts:
            self._write(self._taken())
        self._end_file()
        return tuple(self._parts)

    def abandon(self) -> None:
        """Closes what is open; the draft is thrown away."""
        self._thread.shutdown()
        if self._file is not None:
            self._file.file.close()

    def _await(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def _taken(self) -> Any:
        """What was gathered, as a table; nothing is left."""
        pending, self._pending, self._size = self._pending, [[] for _ in self._schema], 0
        arrays = [_array(column, kind.type) for column, kind in zip(pending, self._schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _write(self, rows: Any) -> None:
        if self._writer is None:
            self._path = f"{self._table}/part-{len(self._parts):05}.parquet"
            self._file = _Hashed(self._draft.create(self._path))
            self._writer = pq.ParquetWriter(
                self._file,
                self._schema,
                compression="zstd",
                compression_level=1,
                write_page_checksum=True,
                use_dictionary=[column for column in self._schema.names if column in _REPEATED],
            )
            self._rows = 0
        if rows.num_rows:
            self._writer.write_table(rows)
        self._rows += rows.num_rows
        assert self._file is not None
        if self._file.bytes >= _FILE_BYTES:
            self._end_file()

    def _end_file(self) -> None:
        if self._writer is None or self._file is None:
            return
        self._writer.close()
        self._file.file.close()
        digest = self._file.digest.hexdigest()
        self._parts.append(PartFile(self._path, self._rows, self._file.bytes, digest))
        self._writer = self._file = None


def _array(column: list[Any], kind: Any) -> Any:
    """Most often all rows of some columns are equal: nothing is packed, all are of one stage."""
    if column and column[-1] is (first := column[0]) and column.count(first) == len(column):
        return pa.nulls(len(column), kind) if first is None else pa.repeat(pa.scalar(first, kind), len(column))
    return pa.array(column, kind)


def _size_of(column: Sequence[Any]) -> int:
    """About so many bytes, of texts, bytes, numbers or nothing."""
    kinds = set(map(type, column))
    return 8 * len(column) if int in kinds else sum(map(len, filter(None, column)))


class _Hashed:
    """A file for pyarrow to write to, which is hashed on its way."""

    closed = False

    def __init__(self, file: Any) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.bytes = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.digest.update(view)
        self.file.write(view)
        self.bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None: ...

    def close(self) -> None: ...


def digest_of(place: Place, name: str, path: str) -> str:
    """The sha256 of a file. Raises SavepointError."""
    digest = hashlib.sha256()
    with place.open(name, path) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read_rows(
    place: Place, name: str, table: str, path: str, groups: tuple[int, int] | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Pages of rows of one file, of those that `read_columns` reads. Raises SavepointError as it does."""
    for columns in read_columns(place, name, table, path, groups):
        yield rows_of(columns)


def rows_of(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def read_columns(
    place: Place, name: str, table: str, path: str, groups: tuple[int, int] | None = None
) -> Iterator[dict[str, list[Any]]]:
    """Pages of one file: column -> its values. Columns are found by their names; others than ours are left out.

    `groups`: the first and the last key group that are wanted; others may come all the same.
    Raises SavepointError for a file that cannot be read, or lacks a column, or has one of a foreign type.
    """
    schema = SCHEMAS[table]
    with _opened(place, name, path) as (file, where):
        missing = [column for column in schema.names if column not in file.schema_arrow.names]
        if missing:
            raise SavepointError(f"{where} has no column {missing[0]!r}")
        for number in _row_groups(file, groups):
            for batch in file.iter_batches(_PAGE_ROWS, [number], columns=schema.names):
                page = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
                yield {column: _values(page.column(column), column) for column in schema.names}


def read_originals(place: Place, name: str, table: str, path: str) -> Iterator[Any]:
    """Record batches of one file that is as it was written; those of its columns that repeat have dictionaries.

    Raises SavepointError for a file that cannot be read.
    """
    schema = SCHEMAS[table]
    repeated = [column.name for column in schema if column.name in _REPEATED and column.type == pa.string()]
    with _opened(place, name, path, read_dictionary=repeated) as (file, _):
        for number in range(file.num_row_groups):
            # Threads of its own cost more than they give beside a Redis that is at work.
            yield from file.iter_batches(_PAGE_ROWS, [number], columns=schema.names, use_threads=False)


@contextmanager
def _opened(place: Place, name: str, path: str, **options: Any) -> Iterator[tuple[Any, str]]:
    """A Parquet file, and what it is called in messages. Raises SavepointError for what goes wrong in the body."""
    where = f"{place.url.rstrip('/')}/{name}/{path}"
    try:
        with place.open(name, path) as raw:
            yield pq.ParquetFile(raw, page_checksum_verification=True, **options), where
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SavepointError(f"{where} cannot be read: {error}") from error


def _values(column: Any, name: str) -> list[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    if name not in _REPEATED:
        return column.to_pylist()  # type: ignore[no-any-return]
    runs = pc.run_end_encode(column.combine_chunks())
    found: list[Any] = []
    for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        found += [value] * (end - len(found))
    return found


def _row_groups(file: Any, groups: tuple[int, int] | None) -> list[int]:
    """Those that may hold rows of these key groups, by what the file says of itself."""
    numbers = list(range(file.metadata.num_row_groups))
    if groups is None:
        return numbers
    # Statistics are of the leaves of a nested column, each by itself.
    paths = [file.metadata.schema.column(number).path for number in range(file.metadata.num_columns)]
    column = paths.index("group")
    found = []
    for number in numbers:
        facts = file.metadata.row_group(number).column(column).statistics
        is_known = facts is not None and facts.has_min_max and facts.null_count == 0 and isinstance(facts.min, int)
        if not is_known or (facts.min <= groups[1] and groups[0] <= facts.max):
            found.append(number)
    return found
