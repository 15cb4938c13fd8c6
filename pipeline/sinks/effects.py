"""What sinks that write neither to Redis nor to files have in common: their effects come before the commit.

A step's effects are made first, then `seal` lets them last, and then the commit is sent. So after a crash between the
two an effect may stand that Redis knows nothing of. An effect that can tell (`begin`) makes the step end there and is
not made again; one that cannot is made again with the same idempotency key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pipeline.positions import Position
from pipeline.records import Batch

EFFECT_FORMATS = ("sql", "http", "call", "kafka")
"""Sinks that are effects; the others are output streams or files."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One ownership of one partition. `run` tells two jobs of the same id apart, and generations of one job.

    restored_end: the place behind the last entry that the server had when it began; None if the job was made on it.
    """

    job: str
    run: str
    stage: int
    partition: int
    term: int
    restored_end: Position | None = None

    @property
    def place(self) -> str:
        return f"{self.stage}.{self.partition}"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a step must end because effects up to there stand. `timers`: how many timers, or held records, it ran."""

    end: Position
    timers: int


class Effect(Protocol):
    """The effects of some sinks for one partition. Used by one thread.

    Of each step: `begin`, then `write`, or after a failure `take_back` and `check` for each record alone and then
    `write`, which finds what was checked in place; at last `seal`. All but `undo`, `take_back` and `close` may raise
    SinkAway, after which `close` comes next, and SinkError.
    """

    sinks: tuple[str, ...]

    def begin(self, owner: Owner, at: Position, given: Mapping[str, int]) -> Bound | None:
        """A step begins at this position. `given`: sink -> records that it was given by the steps before."""

    def write(self, outputs: Mapping[str, Batch]) -> None:
        """The rows of a step, all or none that lasts. Raises RowRejected, EncodingError."""

    def check(self, outputs: Mapping[str, Batch]) -> None:
        """The rows of one record of a step that failed as a whole. Raises RowRejected, EncodingError."""

    def undo(self) -> None:
        """Takes back the last `check`, if this effect can be taken back at all."""

    def take_back(self) -> None:
        """Takes back the step so far, as far as it can be; its records come one by one next."""

    def seal(self, start: Position, end: Position, timers: int) -> None:
        """The step is from `start` to `end`: when this returns its effects last."""

    def close(self) -> None:
        """Forgets all. The next is `begin`."""
