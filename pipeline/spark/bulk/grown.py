"""What was read of files that grow, as portions for tasks: of each file the records between two places."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pipeline.errors import InputError
from pipeline.settings import Limits
from pipeline.sources.endless import After
from pipeline.sources.filemarks import find_mark
from pipeline.sources.growingfile import FormatOf, GrowingFile
from pipeline.spark.bulk.portions import CollectingLane, Piece

_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC
_HINT: Final = "what was read must stay as it is; then the state of keys cannot be computed from it"


@dataclass(frozen=True, slots=True)
class GrownSplit:
    """One content of one file. first, start: how many of its records are left out, and its position behind those, or
    None for its beginning; last, end: the same of the last one that is wanted.
    """

    name: str
    path: str
    first: int
    start: Any
    last: int
    end: Any


@dataclass(frozen=True)
class GrownPortions:
    """A task for each file. A `pipeline.spark.bulk.portions.Portions`."""

    splits: tuple[GrownSplit, ...]
    formats: FormatOf

    @property
    def count(self) -> int:
        return len(self.splits)

    def read(self, number: int, limits: Limits) -> Iterator[Piece]:
        """Raises InputError, also when the file does not hold any more what was read of it."""
        split = self.splits[number]
        lane = CollectingLane(split.name, limits, (split.first, split.last))
        done, position = split.first, split.start
        reader = _opened(split, self.formats)
        try:
            while not lane.is_full(done):
                portion = reader.read()
                batch = portion.batch
                if len(batch):
                    lane.append(done + 1, batch, lambda index, place=portion.place: f"{place(index)}: ")  # type: ignore[misc]
                    done += len(batch)
                    position = portion.position(min(len(batch), len(batch) - (done - split.last)) - 1)
                    yield from lane.collected()
                elif portion.after is not After.MORE:
                    raise _changed(split)
        finally:
            reader.close()
        if position != split.end:
            raise _changed(split)


class _Still:
    """A file of which only what was there is read. A `pipeline.sources.growingfile.Watched`."""

    def __init__(self, split: GrownSplit) -> None:
        self._split = split
        self.path = split.path

    def note_change(self) -> None:
        pass

    def note_end(self, unread_bytes: int) -> None:
        pass

    def note_closed(self) -> None:
        pass

    def is_abandoned(self) -> bool:
        """Its last line, if it was read, counted as whole."""
        return True

    def must_rest(self) -> bool:
        return False

    def rest(self, size: int, modified_ns: int) -> None:
        pass

    def start_over(self, why: str, lost_bytes: int) -> None:
        raise _changed(self._split)


def _opened(split: GrownSplit, formats: FormatOf) -> GrowingFile:
    try:
        descriptor = os.open(split.path, _FLAGS)
    except OSError as error:
        raise InputError(f"{split.path} cannot be read: {error.strerror}", hint=_HINT) from error
    try:
        mark, is_whole = find_mark(descriptor, split.start), find_mark(descriptor, split.end) is not None
        if mark is None or not is_whole:
            raise _changed(split)
        return GrowingFile(_Still(split), descriptor, mark, formats)
    except BaseException:
        os.close(descriptor)
        raise


def _changed(split: GrownSplit) -> InputError:
    return InputError(f"{split.path} does not hold any more what was read of it", hint=_HINT)
