"""What the history of some keys gives, whoever computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pipeline.records import Timer
from pipeline.spark.bulk.letters import Letter
from pipeline.store.swaps import Sent

Given: TypeAlias = Mapping[str, Mapping[str, Sent]]
"""Source -> split -> what it has given."""


@dataclass(frozen=True, slots=True)
class Computed:
    """values: (operator, key) -> state. timers: those that are open. letters: of all records that failed so far.

    held: records behind letters that hold their keys. records, seconds: that were read by the last call, and its time.
    """

    values: Mapping[tuple[str, Any], Any]
    timers: tuple[Timer, ...] = ()
    letters: tuple[Letter, ...] = field(default=())
    held: int = 0
    records: int = 0
    seconds: float = 0.0


Recompute: TypeAlias = Callable[[Given], Computed]
"""Goes on from where its last call has come to: what all records give that were given by then. Blocks."""


def count_between(before: Given, after: Given) -> int:
    """How many records there are behind the ones before."""
    return sum(
        sent.records - known.records
        for source, splits in after.items()
        for split, sent in splits.items()
        for known in (before.get(source, {}).get(split, Sent(0)),)
    )


def lost_between(before: Given, after: Given) -> dict[str, int]:
    """Source -> records that there were before, and are no more; those that have lost none are not in it."""
    lost: dict[str, int] = {}
    for source, splits in before.items():
        for split, known in splits.items():
            missing = known.records - after.get(source, {}).get(split, Sent(0)).records
            if missing > 0:
                lost[source] = lost.get(source, 0) + missing
    return lost
