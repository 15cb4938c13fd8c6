"""The rows that Spark moves between stages: a row is a batch of records, as a Redis entry is in the live engine.

One schema for all: records on an exchange, records for a sink, and what a task tells of itself (`edge` begins with an
underscore then, which no operator's name does). Spark sees bytes only; it routes by `pid` and sorts by the identity
(stage, partition, ord), which is unique and the same at every attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_
from typing import Final, NamedTuple

import pyarrow as pa

from pipeline.codec import decode_batch
from pipeline.records import Batch

START: Final = "_start"
"""The one row that every partition of a keyed stage gets, so that an empty one ends its input too."""
LETTER: Final = "_letter"
HELD: Final = "_held"
COUNTS: Final = "_counts"
FILE: Final = "_file"
SPLIT: Final = "_split"
NATIVE: Final = "_native"
STATE: Final = "_state"
"""`name` is the operator; the payload is a batch of keys and their state."""
TIMERS: Final = "_timers"
"""`name` is the operator; the payload is a batch of keys, the due times as values."""

SCHEMA: Final = pa.schema(
    [
        ("edge", pa.string()),
        ("pid", pa.int32()),
        ("stage", pa.int32()),
        ("partition", pa.int32()),
        ("ord", pa.int64()),
        ("name", pa.string()),
        ("records", pa.int32()),
        ("payload", pa.binary()),
    ]
)
"""edge: an exchange (the name of the stage that it feeds), a sink, or a kind of above. pid: where the row goes.

stage, partition, ord: who made the row, and its number among the rows of that task.
name: what the kind is about. records: how many there are in the payload.
"""

DDL: Final = "edge string, pid int, stage int, `partition` int, ord long, name string, records int, payload binary"
DDL_OF_EDGE: Final = DDL.removeprefix("edge string, ")
"""As stored: the edge is the folder's name."""

IDENTITY: Final = ("stage", "partition", "ord")

_KEPT: Final = frozenset({str, int, bytes})
"""Types of keys that are the same as values. A tuple is not: it comes back as a list."""

_BATCH_ROWS: Final = 256
_BATCH_BYTES: Final = 4 << 20


class Row(NamedTuple):
    edge: str
    pid: int
    stage: int
    partition: int
    ord: int
    name: str
    records: int
    payload: bytes

    def batch(self) -> Batch:
        """The records of a row that has some."""
        return decode_batch(self.payload)


def are_own_keys(batch: Batch) -> bool:
    """Whether each record is its own key, in which case they cross an exchange once, as values: see `keyed_batch`."""
    keys = batch.keys or []
    return bool(keys) and all(map(is_, keys, batch.values)) and _KEPT.issuperset(map(type, keys))


def keyed_batch(payload: bytes) -> Batch:
    """The records of a payload that has crossed an exchange. Raises DecodingError."""
    batch = decode_batch(payload)
    if batch.keys is None:
        batch.keys = list(batch.values)
    return batch


def is_fact(edge: str) -> bool:
    """Whether it is a kind, and not an operator's name."""
    return edge.startswith("_")


class RowBuffer:
    """Numbers the rows of one task from `first`, and gives them in record batches of bounded size."""

    def __init__(self, stage: int, partition: int, first: int = 0) -> None:
        self.stage, self.partition = stage, partition
        self._next = first
        self._rows: list[Row] = []
        self._bytes = 0

    def add(self, edge: str, pid: int, records: int, payload: bytes, name: str = "") -> None:
        self._rows.append(Row(edge, pid, self.stage, self.partition, self._next, name, records, payload))
        self._next += 1
        self._bytes += len(payload)

    def add_fact(self, kind: str, payload: bytes, name: str = "", records: int = 1) -> None:
        self.add(kind, self.partition, records, payload, name)

    def pass_on(self, row: Row) -> None:
        """A row that another task made."""
        self._rows.append(row)
        self._bytes += len(row.payload)

    def full(self) -> Iterator[pa.RecordBatch]:
        """The rows so far, if they are many."""
        if len(self._rows) >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        rows, self._rows, self._bytes = self._rows, [], 0
        if rows:
            yield batch_of(rows)


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """A record batch of some rows, one at least."""
    columns = zip(zip(*rows, strict=True), SCHEMA, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(column, kind.type) for column, kind in columns], schema=SCHEMA)


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a record batch of this schema."""
    return map(Row._make, zip(*(column.to_pylist() for column in batch.columns), strict=True))
