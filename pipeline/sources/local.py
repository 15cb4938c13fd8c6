"""Reads splits in this process, without Spark: the same records and numbers as Spark's reading of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.codec import shown
from pipeline.records import Batch
from pipeline.sources.csvrows import CsvFormat
from pipeline.sources.feed import BATCH_RECORDS, FAULT_CHARACTERS, Feed, FeedAddress, SourceSummary, SplitWriter
from pipeline.sources.formats import JsonLinesFormat, LineCutter, TextFormat
from pipeline.sources.layout import FileInput
from pipeline.sources.lines import split_lines
from pipeline.sources.splits import Split

ITERABLE_SPLIT: Final = "iterable"
"""The split of a source that reads a Python iterable."""

_FLUSH_SECONDS: Final = 0.05
"""How long a value of a slow iterable waits for the next ones, checked when the next one comes."""


@dataclass(frozen=True, slots=True)
class ItemChunk:
    """Values of an iterable. A `pipeline.sources.feed.Chunk`."""

    items: Sequence[Any]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def size(self) -> int:
        return 0

    def part(self, start: int, stop: int) -> ItemChunk:
        return ItemChunk(self.items[start:stop])

    def decode(self) -> Batch:
        return Batch(list(self.items))

    def place(self, index: int) -> str:
        return ""

    def raw(self, index: int) -> str:
        item = self.items[index]
        try:
            return repr(item)
        except (ValueError, RecursionError):  # a number of too many digits, or endless nesting
            return shown(item, FAULT_CHARACTERS)


def read_locally(source: FileInput, address: FeedAddress) -> SourceSummary:
    """Appends all records of the splits and ends them. Does not complete the source.

    Raises InputError for a file that cannot be read or has changed; what was appended until then stays.
    """
    feed = address.open()
    counts = [read_split(source, split, feed) for split in source.splits]
    return SourceSummary(sum(1 for count in counts if count), sum(counts), source.describe())


def read_items(items: Callable[[], Iterable[Any]], address: FeedAddress) -> SourceSummary:
    """Appends the values of an iterable, numbered by position. A retry must meet the same values."""
    writer = SplitWriter(address.open(), ITERABLE_SPLIT)
    for values in groups(iter(items())):
        writer.add(ItemChunk(values))
    count = writer.finish()
    return SourceSummary(1 if count else 0, count)


def read_split(source: FileInput, split: Split, feed: Feed) -> int:
    """Appends the records of one split, ends it, and returns their number. Raises as `read_locally`."""
    writer = SplitWriter(feed, split.name)
    if isinstance(source.form, TextFormat | JsonLinesFormat | CsvFormat):
        cutter = LineCutter(source.form, split)
        for lines in split_lines(split):
            writer.add(cutter.chunk(lines))
    else:
        from pipeline.sources.parquetrows import split_rows  # pyarrow is an extra

        for chunk in split_rows(split, source.form):
            writer.add(chunk)
    return writer.finish()


def groups(values: Iterator[Any]) -> Iterator[list[Any]]:
    """The values in lists of bounded length; those of a slow iterable in shorter ones."""
    group: list[Any] = []
    for value in values:
        if not group:
            started = time.monotonic()
        group.append(value)
        if len(group) >= BATCH_RECORDS or time.monotonic() - started > _FLUSH_SECONDS:
            yield group
            group = []
    if group:
        yield group
