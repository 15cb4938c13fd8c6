"""Lifecycle operations: what changes a job while it runs, one at a time. So far: `rescale`. Data, and its words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """Where an operation is. It can be called off while it waits, afterwards it is carried to its end."""

    WAITING = "waiting"
    """For a short backlog."""
    SETTLING = "settling"
    """Keys go to the new partitions; those that get some wait for what the old ones have still before them."""


class About(msgspec.Struct, frozen=True):
    """What an operation does. stage: its name. by: who has asked for it."""

    kind: str
    stage: str
    before: int
    to: int
    by: str = ""

    def __str__(self) -> str:
        return f"{self.kind} of {self.stage}"

    @property
    def change(self) -> str:
        return f"{self.kind} of {self.stage} from {self.before} to {self.to} partitions"


@dataclass(frozen=True, slots=True)
class Operation:
    """The one under way. stage: the index of its stage. is_urgent: it does not wait for a short backlog.

    Times are milliseconds of the job's clock; `since_ms`: when its phase began, `switched_at_ms`: 0 before that.
    """

    id: str
    about: About
    phase: Phase
    stage: int
    is_urgent: bool
    begun_at_ms: int
    since_ms: int
    switched_at_ms: int = 0

    def words(self, now_ms: int) -> str:
        return busy_words(self.about, self.phase, now_ms - self.begun_at_ms)


@dataclass(frozen=True, slots=True)
class PastOperation:
    """One that has ended. `outcome`: done, cancelled, or why it was given up."""

    at_ms: int
    begun_at_ms: int
    switched_at_ms: int
    outcome: str
    about: About


def busy_words(about: About, phase: str, milliseconds: int) -> str:
    """What is told to those who want to begin another one."""
    return f"{about}, since {max(0, milliseconds) / 1000:.0f} s, phase {phase}"
