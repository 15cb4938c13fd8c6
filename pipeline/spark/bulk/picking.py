"""Some of the records of a split, by the numbers of their rows: of all others none is made, but they are counted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.sources.csvrows import CsvFormat
from pipeline.sources.feed import SplitWriter
from pipeline.sources.formats import JsonLinesFormat, LineChunk, LineCutter, Places, TextFormat
from pipeline.sources.layout import Format
from pipeline.sources.lines import split_lines
from pipeline.sources.splits import Split
from pipeline.spark.bulk.portions import CollectingLane


class PickedRecords:
    """`rows` are numbers of rows from 0, in order: of lines, blank ones and heads included, or of a table's rows.

    Gives payloads; `count` is the number of all records of the split once that is over. Raises InputError.
    """

    def __init__(self, split: Split, form: Format, rows: Sequence[int], limits: Limits) -> None:
        self._split, self._form, self._rows = split, form, rows
        self._lane = CollectingLane(split.name, limits)
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        writer = SplitWriter(self._lane, self._split.name)
        for chunk, picked in self._chunks():
            self.count += chunk
            if picked is not None:
                writer.add(picked)
                for piece in self._lane.collected():
                    yield piece.payload

    def _chunks(self) -> Iterator[tuple[int, Any]]:
        """The number of records of each chunk, and those that are picked."""
        if isinstance(self._form, TextFormat | JsonLinesFormat | CsvFormat):
            cutter = LineCutter(self._form, self._split)
            for lines in split_lines(self._split):
                chunk = cutter.chunk(lines)
                yield len(chunk), self._of_lines(chunk)
        else:
            from pipeline.sources.parquetrows import split_rows

            first = 0
            for table in split_rows(self._split, self._form):
                places = [row - first for row in self._between(first, first + len(table))]
                numbers = [first + place + 1 for place in places]
                yield len(table), PickedRows(table, self._split.name, places, numbers) if places else None
                first += len(table)

    def _of_lines(self, chunk: LineChunk) -> LineChunk | None:
        numbers = chunk.places.numbers
        if numbers is None:
            first = chunk.places.first
            places = [row + 1 - first for row in self._between(first - 1, first - 1 + len(chunk))]
        else:
            wanted = set(self._between(numbers[0] - 1, numbers[-1])) if numbers else ()
            places = [place for place, number in enumerate(numbers) if number - 1 in wanted]
        if not places:
            return None
        lines = [chunk.lines[place] for place in places]
        kept = [chunk.places.first + place if numbers is None else numbers[place] for place in places]
        return LineChunk(chunk.form, lines, Places(self._split, kept[0], kept))

    def _between(self, first: int, end: int) -> Sequence[int]:
        return self._rows[bisect_left(self._rows, first) : bisect_left(self._rows, end)]


@dataclass(frozen=True, slots=True)
class PickedRows:
    """Rows of a table, each with its number in the split. A `pipeline.sources.feed.Chunk`."""

    table: Any
    split: str
    places: Sequence[int]
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.places)

    @property
    def size(self) -> int:
        return int(self.table.size * len(self) / len(self.table))

    def part(self, start: int, stop: int) -> PickedRows:
        return PickedRows(self.table, self.split, self.places[start:stop], self.numbers[start:stop])

    def decode(self) -> Batch:
        batch: Batch = self._picked().decode()
        return batch

    def place(self, index: int) -> str:
        return f"{self.split}: record {self.numbers[index]}"

    def raw(self, index: int) -> str:
        return str(self._picked().raw(index))

    def _picked(self) -> Any:
        return type(self.table)(self.table.form, self.table.batch.take(list(self.places)))
