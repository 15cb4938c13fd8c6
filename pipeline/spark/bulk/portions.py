"""What the tasks of an entry stage read: blocks of files, or what the driver has staged. Plain data for tasks.

Splits, names and numbers of records are those of the live engine, since it is the same reader: a task gets the names
of some consecutive blocks and reads them itself. So Spark's own reader, and its settings, play no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeAlias

import pyarrow.parquet as pq

from pipeline.codec import decode_batch
from pipeline.errors import EnvironmentFault
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.sources.csvrows import CsvFormat
from pipeline.sources.feed import SplitWriter
from pipeline.sources.formats import JsonLinesFormat, LineCutter, TextFormat
from pipeline.sources.layout import FileInput
from pipeline.sources.lines import split_lines
from pipeline.sources.splits import Split, portions_of
from pipeline.store.payloads import encode_faulty

_WHOLE: Final = (0, None)

_PIECE_RECORDS: Final = 1_000
"""A line may become ten records, and what a step goes through several times should stay in the processor's cache."""

Range: TypeAlias = tuple[int, int | None]
"""Of the records of a split those that are wanted: how many are left out, and how many there are up to the end."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive records of a split, as payload. `numbers`: the number of the last one, or of one left out."""

    split: str
    payload: bytes
    numbers: int


class Portions(Protocol):
    """The tasks of one source: `count` of them, each read by its number, any time again with the same answer."""

    @property
    def count(self) -> int: ...

    def read(self, number: int, limits: Limits) -> Iterator[Piece]:
        """Raises InputError. Pieces have bounded size; one without records may say how many were left out."""


@dataclass(frozen=True)
class FilePortions:
    """Blocks of files. `ranges`: split's name -> which of its records are wanted; all of one that is not named."""

    source: FileInput
    groups: tuple[range, ...]
    """For each task the places of its splits."""
    ranges: Mapping[str, Range] = field(default_factory=dict)

    @classmethod
    def of(cls, source: FileInput, ranges: Mapping[str, Range] | None = None) -> FilePortions:
        return cls(source, portions_of(source.splits), ranges or {})

    @property
    def count(self) -> int:
        return len(self.groups)

    def located(self, path: str, start: int) -> tuple[int, int, Split]:
        """The task and the place in it of a block, and the block. Raises EnvironmentFault for one that is not ours."""
        for number, group in enumerate(self.groups):
            for place in group:
                split = self.source.splits[place]
                if (split.path, split.start) == (path, start):
                    return number, place - group.start, split
        raise EnvironmentFault(f"Spark has read a block of {path} from byte {start}, and was asked for others")

    def read(self, number: int, limits: Limits) -> Iterator[Piece]:
        for split in (self.source.splits[place] for place in self.groups[number]):
            lane = CollectingLane(split.name, limits, self.ranges.get(split.name, _WHOLE))
            writer = SplitWriter(lane, split.name)
            if isinstance(self.source.form, TextFormat | JsonLinesFormat | CsvFormat):
                cutter = LineCutter(self.source.form, split)
                for lines in split_lines(split):
                    writer.add(cutter.chunk(lines))
                    yield from lane.collected()
                    if lane.is_full(writer.count):
                        break
            else:
                from pipeline.sources.parquetrows import split_rows

                for chunk in split_rows(split, self.source.form):
                    writer.add(chunk)
                    yield from lane.collected()
                    if lane.is_full(writer.count):
                        break


@dataclass(frozen=True, slots=True)
class StagedPortions:
    """Files that the driver has written: `split`, `payload` and `numbers` of each piece."""

    paths: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.paths)

    def read(self, number: int, limits: Limits) -> Iterator[Piece]:
        with pq.ParquetFile(self.paths[number]) as file:
            for batch in file.iter_batches(batch_size=64):
                columns = [column.to_pylist() for column in batch.columns]
                yield from map(Piece, *columns)


class CollectingLane:
    """A feed with one lane which keeps what is appended until it is taken: `pipeline.sources` reads into it."""

    taken = 0

    def __init__(self, split: str, limits: Limits, wanted: Range = _WHOLE) -> None:
        self._split = split
        self._limits = limits
        self._first, self._end = wanted
        self._pieces: list[Piece] = []

    def lane(self, split: str) -> CollectingLane:
        return self

    def splits(self, beginning: str = "") -> list[str]:
        return [name for name in (self._split,) if name.startswith(beginning)]

    def complete(self, splits: int) -> None:
        """Nobody waits for it."""

    def append(self, first: int, batch: Batch, place: Callable[[int], str]) -> None:
        numbers = first - 1 + len(batch)
        if self._end is not None:
            numbers = min(numbers, self._end)
        start = min(max(0, self._first - (first - 1)), len(batch))
        stop = len(batch) if self._end is None else min(max(0, self._end - (first - 1)), len(batch))
        if (start, stop) != (0, len(batch)):
            batch = batch.slice(start, max(start, stop))
        for at in range(0, max(1, len(batch)), _PIECE_RECORDS):
            part = batch.slice(at, at + _PIECE_RECORDS)
            payload = encode_faulty(part, self._limits.record_bytes, partial(_shifted, place, start + at))
            is_last = at + _PIECE_RECORDS >= len(batch)
            self._pieces.append(Piece(self._split, payload, numbers if is_last else first - 1 + start + at + len(part)))

    def finish(self, count: int) -> None:
        """The pieces say it."""

    def is_full(self, count: int) -> bool:
        """Whether none is wanted behind the first `count`."""
        return self._end is not None and count >= self._end

    def collected(self) -> Iterator[Piece]:
        """What was appended since the last call."""
        pieces, self._pieces = self._pieces, []
        yield from pieces


def _shifted(place: Callable[[int], str], by: int, index: int) -> str:
    return place(by + index)


def merged(payloads: Sequence[bytes], decode: Callable[[bytes], Batch] = decode_batch) -> Batch:
    """One batch of the records of payloads that are alike, in order."""
    whole = decode(payloads[0])
    for payload in payloads[1:]:
        extend(whole, decode(payload))
    return whole


def extend(whole: Batch, more: Batch) -> None:
    """Adds the records of a batch that is alike. Neither may be shared with others."""
    whole.values.extend(more.values)
    for mine, others in ((whole.keys, more.keys), (whole.times, more.times), (whole.ids, more.ids)):
        if mine is not None and others is not None:
            mine.extend(others)  # type: ignore[arg-type]


def are_alike(one: Batch, other: Batch) -> bool:
    """Whether they have the same columns, and no faults."""
    columns = [(batch.keys is None, batch.times is None, batch.ids is None) for batch in (one, other)]
    return columns[0] == columns[1] and not one.faults and not other.faults
