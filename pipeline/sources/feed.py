"""Where the records of a source go, and how those of one split are numbered. Knows no file and no store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from pipeline.errors import EncodingError
from pipeline.records import Batch

BATCH_RECORDS: Final = 4_000
"""Most records in one append."""

BATCH_BYTES: Final = 1 << 20
"""Raw bytes after which an append is closed."""

FAULT_CHARACTERS: Final = 65_536
"""What is kept of the raw text of a record that cannot be appended, perhaps for its size."""


class Lane(Protocol):
    """One registered sender, which is one split.

    taken: the highest sequence number that the job already has; numbers start at 1.
    """

    @property
    def taken(self) -> int: ...

    def append(self, first: int, batch: Batch, place: Callable[[int], str]) -> None:
        """Appends the numbers first..first+len-1; cuts what is taken; blocks while the inbox is full.

        The fault of a record that cannot be stored begins with `place(index)`.
        """

    def finish(self, count: int) -> None:
        """Says that the split has exactly `count` records."""


class Feed(Protocol):
    """The entry of one source of one job."""

    def lane(self, split: str) -> Lane:
        """Registers the sender, or finds it again."""

    def splits(self, beginning: str = "") -> list[str]:
        """The splits that are registered, and whose names begin so."""

    def complete(self, splits: int) -> None:
        """Says that the source ends when this many splits are finished."""


class FeedAddress(Protocol):
    """Opens a feed in whatever process reads. It travels to Spark's executors, so it is plain data."""

    def open(self) -> Feed: ...


@dataclass(frozen=True, slots=True)
class SourceSummary:
    """What was read: the splits that hold records, the number of records, and the columns as one line."""

    splits: int
    records: int
    columns: str = ""


class Chunk(Protocol):
    """Some consecutive records of a split, not decoded yet."""

    def __len__(self) -> int: ...

    @property
    def size(self) -> int:
        """Raw bytes, about."""

    def part(self, start: int, stop: int) -> Chunk: ...

    def decode(self) -> Batch: ...

    def place(self, index: int) -> str:
        """Where the record stands, for a message, or nothing where its number says it."""

    def raw(self, index: int) -> str:
        """The record as it stands in the source, for a dead letter."""


class SplitWriter:
    """Numbers the records of one split in the order of `add` and appends what the job does not have yet.

    A split without a record registers no sender.
    """

    def __init__(self, feed: Feed, split: str) -> None:
        self._feed = feed
        self._split = split
        self._lane: Lane | None = None
        self.count = 0

    def add(self, chunk: Chunk) -> None:
        """Blocks while the inbox is full. Raises what the lane raises."""
        if not len(chunk):
            return
        if self._lane is None:
            self._lane = self._feed.lane(self._split)
        skipped = min(max(self._lane.taken - self.count, 0), len(chunk))
        for start, stop in _pieces(chunk, skipped):
            self._append(self._lane, self.count + start + 1, chunk.part(start, stop))
        self.count += len(chunk)

    def finish(self) -> int:
        """Ends the split and returns its number of records."""
        if self._lane is not None:
            self._lane.finish(self.count)
        return self.count

    def _append(self, lane: Lane, first: int, chunk: Chunk) -> None:
        """A record that cannot be encoded or is too large becomes a fault, as one that cannot be read."""
        batch = chunk.decode()

        def place(index: int) -> str:
            return f"{chunk.place(index) or f'{self._split}: record {first + index}'}: "

        while True:
            try:
                lane.append(first, batch, place)
                return
            except EncodingError as error:
                if not 0 <= error.index < len(batch):
                    raise
                text = chunk.raw(error.index)[:FAULT_CHARACTERS]
                if error.index in batch.faults and batch.values[error.index] == text:
                    raise
                batch.faults.setdefault(error.index, place(error.index) + str(error))
                batch.values[error.index] = text


def _pieces(chunk: Chunk, start: int) -> Iterator[tuple[int, int]]:
    """Ranges of near equal length that keep to BATCH_RECORDS and, by the average size, to BATCH_BYTES."""
    total = len(chunk)
    by_size = max(1, total * BATCH_BYTES // max(chunk.size, 1))
    step = min(BATCH_RECORDS, by_size)
    while start < total:
        yield start, min(start + step, total)
        start += step
