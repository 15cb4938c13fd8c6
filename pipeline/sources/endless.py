"""What the sources that go on have in common: splits that are read from a position, a portion at a time. Plain data."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.codec import shown
from pipeline.errors import InputError
from pipeline.records import Batch


class After(enum.Enum):
    """What follows a portion: MORE is there, nothing now (WAITING), nothing for long (RESTING), nothing ever (ENDED).

    The reader of a split that rests is closed; the source gives the split again when there is something to read.
    """

    MORE = "more"
    WAITING = "waiting"
    RESTING = "resting"
    ENDED = "ended"


def foreign_position(position: Any) -> InputError:
    """For a position that Redis gives, and no source of this kind has stored."""
    return InputError(
        f"the position {shown(position, 200)}, which Redis has of this source, is none of its own",
        hint="another program has written to keys that begin with celeriac: on this Redis, or the source was of another"
        " kind when it was read before: run it under a new job id",
    )


def _no_position(_index: int) -> Any:
    return None


def _no_place(_index: int) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Portion:
    """Consecutive records of one split, perhaps none.

    position: index -> where to read on behind that record, a JSON value of at most 4 KB. A reader that is opened there
    gives the records that follow, each once and in the same order.
    place: index -> where the record stands, for a message.
    """

    batch: Batch
    after: After
    position: Callable[[int], Any] = _no_position
    place: Callable[[int], str] = _no_place


def nothing(after: After) -> Portion:
    return Portion(Batch([]), after)


class Reader(Protocol):
    """Reads one split from one position on. Used by one thread."""

    def read(self) -> Portion:
        """The next records, bounded in number and bytes; waits for nothing but the answer of what it reads.

        Raises SourceAway (it is opened anew after a pause), InputError and PipelineError, which end the job.
        """

    def close(self) -> None:
        """Never raises."""


class Split(Protocol):
    """One sender of a source: what has an order of its own. `name` is stable through restarts and renames."""

    @property
    def name(self) -> str: ...

    def open(self, position: Any) -> Reader:
        """Reads on at a position of one of its portions, or from the beginning (None). Raises as `Reader.read` does."""


class Source(Protocol):
    """Finds the splits of one source. Used by one thread. `poll_seconds`: the pause where there is nothing to read."""

    poll_seconds: float

    def look(self, room: int) -> Sequence[Split]:
        """At most `room` splits that are not open and may have something to read. Raises as `Reader.read` does."""

    def forgettable(self) -> Sequence[str]:
        """Names of splits that will never be given again. Each is named once."""

    def close(self) -> None:
        """Never raises."""


class Memory(Protocol):
    """What the job knows of a source from earlier: the feed of the source."""

    def splits(self) -> list[str]:
        """The names of all splits that were ever read."""

    def position(self, split: str) -> Any:
        """Where such a split is read on; None: at its beginning."""
