"""Lifecycle operations: what changes a job while it runs, one at a time: `rescale`, `upgrade`, `shadow`, `burst`,
`backfill`. Data, and its words.

The leader carries out a rescale. The others are carried out by their commands, under a claim that these renew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

import msgspec

from pipeline.wording import counted

Kind = Literal["rescale", "upgrade", "shadow", "burst", "backfill"]

CLAIM_SECONDS: Final = 15.0
"""A command that has not renewed its claim for so long is taken for gone: whoever comes next begins in its place."""


class Phase(StrEnum):
    """Where an operation is. A rescale can be called off while it waits, afterwards it is carried to its end."""

    WAITING = "waiting"
    """Rescale: for a short backlog."""
    SETTLING = "settling"
    """Rescale: keys go to the new partitions; those that get some wait for what the old ones have still before them."""
    ROLLING = "rolling"
    """Upgrade: one worker after the other changes."""
    FINISHING = "finishing"
    """Upgrade: each has changed; those that died meanwhile come back with the version, too."""
    COPYING = "copying"
    """Shadow: it is made of a cut of the job."""
    COMPARING = "comparing"
    """Shadow: it gets the input of the job, and its results are compared."""
    PROMOTING = "promoting"
    """Shadow: the job's input is held back until both stand at one place, where the shadow's state becomes its own."""
    STARTING = "starting"
    """Burst: Spark starts; partitions go to it as soon as it is heard of."""
    BURSTING = "bursting"
    """Burst: Spark works on each partition up to its cut; those that are there go back."""
    RETURNING = "returning"
    """Burst: all partitions go back."""
    RECOMPUTING = "recomputing"
    """Backfill: Spark reads the history of the keys, and the job goes on."""
    SWAPPING = "swapping"
    """Backfill: input is held back until all of it is processed, and the state is swapped there."""


class About(msgspec.Struct, frozen=True):
    """What an operation does, and who has asked for it: `by`.

    stage, before, to: of a rescale, the name and the numbers of partitions. code, file: of the others, the version.
    node, cuts: of a burst, who works on it, and partition, as `stage.partition` -> the position up to which it does.
    stage, keys: of a backfill, the name, and how many keys of it.
    """

    kind: Kind
    stage: str = ""
    before: int = 0
    to: int = 0
    by: str = ""
    code: str = ""
    file: str = ""
    node: str = ""
    cuts: dict[str, str] = {}
    keys: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "rescale":
                return f"rescale of {self.stage}"
            case "upgrade":
                return f"upgrade to version {self.code}"
            case "shadow":
                return f"shadow of version {self.code}"
            case "burst":
                return f"burst of {counted(len(self.cuts), 'partition')}"
            case "backfill":
                return f"backfill of {counted(self.keys, 'key')} of {self.stage}"

    @property
    def change(self) -> str:
        """The same with all that is known of it beforehand."""
        if self.kind == "rescale":
            return f"{self} from {self.before} to {counted(self.to, 'partition')}"
        if self.kind == "burst":
            return f"{self} on {self.node}"
        if self.kind == "backfill":
            return f"{self} by {self.file}"
        return f"{self} of {self.file}"


@dataclass(frozen=True, slots=True)
class Operation:
    """The one under way. stage: the index of a rescale's stage. is_urgent: it does not wait for a short backlog.

    done, total: of an upgrade, the workers that have changed, and all; of a burst or a backfill, records. until_ms:
    when its command counts as gone; 0 for what the leader carries out. Times are milliseconds of the job's clock;
    `since_ms`: when its phase began, `switched_at_ms`: 0 before that.
    """

    id: str
    about: About
    phase: Phase
    stage: int
    is_urgent: bool
    begun_at_ms: int
    since_ms: int
    switched_at_ms: int = 0
    done: int = 0
    total: int = 0
    until_ms: int = 0

    def words(self, now_ms: int) -> str:
        return busy_words(self.about, self.phase, now_ms - self.begun_at_ms)

    def is_abandoned(self, now_ms: int) -> bool:
        """Its command is gone: it holds nobody up."""
        return 0 < self.until_ms < now_ms


@dataclass(frozen=True, slots=True)
class Claim:
    """By this a command holds the operation that it carries out; with another token it is another's."""

    job: str
    token: str


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
