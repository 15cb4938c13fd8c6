"""Lines to records, for text and JSON lines. Both readers use it, so their values agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import msgspec

from pipeline.records import Batch
from pipeline.sources.splits import Split


class LineFormat(Protocol):
    """How the lines of a file become records. Frozen data that travels to Spark's executors."""

    @property
    def skips_blank(self) -> bool:
        """Whether a line of white space only is no record."""

    @property
    def has_header(self) -> bool:
        """Whether the first line of a file that counts is no record."""

    def decode(self, lines: Sequence[bytes], places: LinePlaces) -> Batch:
        """One record per line. A line that is no record of this format is a fault, its value the raw text."""

    def describe(self) -> str:
        """The columns and their types in one line, or nothing."""


class LinePlaces(Protocol):
    """Names lines for messages, by their index."""

    def __getitem__(self, index: int) -> str: ...


@dataclass(frozen=True, slots=True)
class Places:
    """Names lines for messages: by `first + index`, or by `numbers[index]` if lines are left out."""

    split: Split
    first: int
    numbers: Sequence[int] | None = None

    def part(self, start: int, stop: int) -> Places:
        if self.numbers is None:
            return Places(self.split, self.first + start)
        return Places(self.split, self.first, self.numbers[start:stop])

    def __getitem__(self, index: int) -> str:
        number = self.first + index if self.numbers is None else self.numbers[index]
        if self.split.start == 0:
            return f"{self.split.path}:{number}"
        return f"{self.split.path}: line {number} behind byte {self.split.start}"


@dataclass(frozen=True, slots=True)
class LineChunk:
    """Lines of a split that are records. A `pipeline.sources.feed.Chunk`."""

    form: LineFormat
    lines: Sequence[bytes]
    places: Places

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def size(self) -> int:
        return sum(map(len, self.lines))

    def part(self, start: int, stop: int) -> LineChunk:
        return LineChunk(self.form, self.lines[start:stop], self.places.part(start, stop))

    def decode(self) -> Batch:
        return self.form.decode(self.lines, self.places)

    def place(self, index: int) -> str:
        return self.places[index]

    def raw(self, index: int) -> str:
        return as_text(self.lines[index])


class LineCutter:
    """Turns the lines of one split, given in order, into chunks: drops the header and blank lines."""

    def __init__(self, form: LineFormat, split: Split) -> None:
        self._form = form
        self._split = split
        self._next = 1
        self._awaits_header = form.has_header and split.start == 0

    def chunk(self, lines: Sequence[bytes]) -> LineChunk:
        first, self._next = self._next, self._next + len(lines)
        places = Places(self._split, first)
        if self._form.skips_blank:
            kept = [index for index, line in enumerate(lines) if not is_blank(line)]
            if len(kept) < len(lines):
                places = Places(self._split, first, [first + index for index in kept])
                lines = [lines[index] for index in kept]
        chunk = LineChunk(self._form, lines, places)
        if self._awaits_header and lines:
            self._awaits_header = False
            return chunk.part(1, len(lines))
        return chunk


@dataclass(frozen=True, slots=True)
class TextFormat:
    """Each line is a value, without its end; an empty line is a record. What is not UTF-8 becomes U+FFFD."""

    skips_blank: bool = False
    has_header: bool = False

    def decode(self, lines: Sequence[bytes], places: LinePlaces) -> Batch:
        # All in one go is sooner. No line holds a line end, and what is not UTF-8 ends with its line at the latest.
        return Batch(as_text(b"\n".join(lines)).split("\n") if lines else [])

    def describe(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class JsonLinesFormat:
    """Each line is one JSON value. Blank lines are no records."""

    skips_blank: bool = True
    has_header: bool = False

    def decode(self, lines: Sequence[bytes], places: LinePlaces) -> Batch:
        decode = msgspec.json.decode
        try:
            return Batch([decode(line) for line in lines])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._decode_one_by_one(lines, places)

    def describe(self) -> str:
        return ""

    def _decode_one_by_one(self, lines: Sequence[bytes], places: LinePlaces) -> Batch:
        batch = Batch([])
        for index, line in enumerate(lines):
            try:
                batch.values.append(msgspec.json.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                batch.faults[index] = f"{places[index]}: no JSON: {error}"
                batch.values.append(as_text(line))
        return batch


def as_text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def first_records(chunks: Iterator[list[bytes]], count: int) -> list[bytes]:
    """The first `count` lines that are not blank."""
    return list(islice((line for lines in chunks for line in lines if not is_blank(line)), count))


def is_blank(line: bytes) -> bool:
    return not line or line.isspace()
