"""Reads one file that grows, from a byte offset on, by whole lines. Notices that it was cut or replaced in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, Protocol

from pipeline.errors import InputError, SourceAway
from pipeline.records import Batch
from pipeline.sources.endless import After, Portion, nothing
from pipeline.sources.feed import BATCH_RECORDS, FAULT_CHARACTERS
from pipeline.sources.filemarks import FileMark, mark_at
from pipeline.sources.formats import LineFormat, as_text, is_blank
from pipeline.sources.lines import MARK, check_start, whole_lines

READ_BYTES: Final = 1 << 20
LINE_BYTES: Final = 8 << 20
"""A longer line is not kept in memory: it becomes a fault that holds its beginning."""


@dataclass(frozen=True, slots=True)
class FormatOf:
    """How the lines of a file become records: a format, or what makes one of its header line."""

    fixed: LineFormat | None
    by_header: Callable[[Path, bytes], LineFormat] | None = None


class Watched(Protocol):
    """What the source knows of a file while it is read."""

    @property
    def path(self) -> str:
        """Where it is now, or was seen last."""

    def note_change(self) -> None:
        """It has grown, or was written to."""

    def note_end(self, unread_bytes: int) -> None:
        """It was read to its end but for these bytes of a line that has no end yet."""

    def note_closed(self) -> None:
        """It is not held open any more."""

    def is_abandoned(self) -> bool:
        """Whether nobody will write to it any more: it was moved away or deleted, and has been quiet since."""

    def must_rest(self) -> bool:
        """Whether it should make room now that it is read to its end."""

    def rest(self, size: int, modified_ns: int) -> None:
        """It was read to its end, as it is with this size and time."""

    def start_over(self, why: str, lost_bytes: int) -> None:
        """Its content is another one now, which gets a sender of its own. So many bytes were seen and not read."""


class GrowingFile:
    """A `pipeline.sources.endless.Reader`. Holds the file open: neither rename nor removal takes it away."""

    def __init__(self, file: Watched, descriptor: int, mark: FileMark, formats: FormatOf) -> None:
        """`descriptor` is closed by `close`. Raises InputError for a bad header, OSError."""
        self._file = file
        self._descriptor = descriptor
        self._mark = mark
        self._formats = formats
        self._form = formats.fixed
        if self._form is None and mark.offset:
            first = os.pread(descriptor, min(LINE_BYTES, mark.offset), 0).removeprefix(MARK).splitlines()
            self._form = self._by_header(next(line for line in first if not is_blank(line)))
        self._seen: tuple[int, int] | None = None
        """Size and time when there was nothing more to read."""
        self._long_bytes = 0
        """How much of a line that is too long was looked through for its end."""

    def close(self) -> None:
        os.close(self._descriptor)
        self._file.note_closed()

    def read(self) -> Portion:
        try:
            return self._read()
        except OSError as error:
            raise SourceAway(f"{self._file.path} cannot be read: {error.strerror or error}") from error

    def _read(self) -> Portion:
        facts = os.fstat(self._descriptor)
        if (facts.st_size, facts.st_mtime_ns) == self._seen:
            return self._at_end(facts)
        self._file.note_change()
        data = self._lines() if facts.st_size > self._mark.offset else b""
        # Behind the reading: what was read before a cut is true, and a content that has gone does not come back.
        if not self._mark.fits(self._descriptor):
            lost = max(0, (self._seen or (0, 0))[0] - self._mark.offset)
            self._file.start_over("was cut, or holds something else than it did", lost)
            return nothing(After.RESTING)
        if data:
            return self._portion(data, After.MORE)
        if 0 < self._long_bytes < facts.st_size - self._mark.offset:
            return nothing(After.MORE)
        self._seen = (facts.st_size, facts.st_mtime_ns)
        return self._at_end(facts)

    def _at_end(self, facts: os.stat_result) -> Portion:
        self._file.note_end(facts.st_size - self._mark.offset)
        if self._file.is_abandoned():
            rest = os.pread(self._descriptor, min(LINE_BYTES, facts.st_size - self._mark.offset), self._mark.offset)
            self._file.note_end(0)
            self._file.rest(facts.st_size, facts.st_mtime_ns)
            return self._portion(rest, After.RESTING) if rest else nothing(After.RESTING)
        if self._file.must_rest():
            self._file.rest(facts.st_size, facts.st_mtime_ns)
            return nothing(After.RESTING)
        return nothing(After.WAITING)

    def _lines(self) -> bytes:
        """The next whole lines, or nothing where there is none yet; of a line that is too long its beginning."""
        if self._long_bytes:
            return self._look_for_its_end()
        data = b""
        while True:
            read = os.pread(self._descriptor, READ_BYTES, self._mark.offset + len(data))
            data += read
            end = whole_lines(data)
            if end or not read:
                return _at_most(BATCH_RECORDS, data[:end])
            if len(data) >= LINE_BYTES:
                self._long_bytes = len(data)
                return b""

    def _look_for_its_end(self) -> bytes:
        read = os.pread(self._descriptor, READ_BYTES, self._mark.offset + self._long_bytes)
        end = read.find(b"\n")
        self._long_bytes += len(read) if end < 0 else end + 1
        return os.pread(self._descriptor, FAULT_CHARACTERS, self._mark.offset) if end >= 0 else b""

    def _portion(self, data: bytes, after: After) -> Portion:
        """The records of these bytes, which are behind the mark; it moves behind them."""
        before = self._mark
        if before.offset == 0:
            check_start(Path(self._file.path), data[:2])
        if self._long_bytes:
            return self._long_line(data, after)
        self._mark = before.after(data)
        pieces = data.splitlines(keepends=True)
        ends = list(accumulate(map(len, pieces)))
        lines = [piece.rstrip(b"\r\n") for piece in pieces]
        if before.offset == 0:
            lines[0] = lines[0].removeprefix(MARK)
        first = self._skip_header(lines)
        form = self._form
        if form is None:
            return nothing(after)
        kept = [at for at in range(first, len(lines)) if not (form.skips_blank and is_blank(lines[at]))]
        if not kept:
            return nothing(after)
        places = _Offsets(self._file.path, [before.offset + (ends[at - 1] if at else 0) for at in kept])
        batch = form.decode([lines[at] for at in kept], places)
        return Portion(
            batch, after, lambda index: before.after(data[: ends[kept[index]]]).position(), places.__getitem__
        )

    def _long_line(self, data: bytes, after: After) -> Portion:
        if self._form is None:
            raise InputError(
                f"{self._file.path}: the first line has more than {LINE_BYTES:,} bytes",
                hint="the first line must name the columns; is this a CSV file?",
            )
        place = f"{self._file.path}: line at byte {self._mark.offset:,}"
        why = f"a line of {self._long_bytes:,} bytes, and {LINE_BYTES:,} is the most"
        self._mark = mark_at(self._descriptor, self._mark.offset + self._long_bytes)
        self._long_bytes = 0
        position = self._mark.position()
        batch = Batch([as_text(data[:FAULT_CHARACTERS])], faults={0: f"{place}: {why}"})
        return Portion(batch, after, lambda _: position, lambda _: place)

    def _skip_header(self, lines: Sequence[bytes]) -> int:
        """The first line that may be a record; the format is known from then on, if there is a header in these."""
        if self._form is not None:
            return 0
        for index, line in enumerate(lines):
            if not is_blank(line):
                self._form = self._by_header(line)
                return index + 1
        return len(lines)

    def _by_header(self, line: bytes) -> LineFormat:
        assert self._formats.by_header is not None  # there is one where no format is fixed
        return self._formats.by_header(Path(self._file.path), line)


def _at_most(lines: int, data: bytes) -> bytes:
    """The first whole lines of the data, about so many by their average length."""
    count = max(data.count(b"\n"), data.count(b"\r"))
    if count <= lines:
        return data
    return data[: whole_lines(data[: len(data) * lines // count]) or len(data)]


@dataclass(frozen=True, slots=True)
class _Offsets:
    """A `pipeline.sources.formats.LinePlaces`: lines that are known by the byte at which they begin."""

    path: str
    starts: Sequence[int]

    def __getitem__(self, index: int) -> str:
        return f"{self.path}: line at byte {self.starts[index]:,}"
