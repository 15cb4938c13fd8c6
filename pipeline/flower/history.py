"""What was seen of a job in the last two minutes, and what follows from it: rates, and the age of what waits.

Nothing in Redis says when a record arrived. But records are numbered, so whoever has looked at an inbox before knows
which numbers were there, and since when at the latest. Knows no store and no clock but that of the facts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from pipeline.facts import JobFacts, PartitionFacts

RATE_SECONDS: Final = 5
"""Rates are over about this long."""

MOMENTS: Final = 120
"""The most that is remembered of one job."""

CELLS: Final = 20_000
"""The most partitions, over all moments of one job: it bounds memory for a job with very many of them."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Age of the oldest record not yet processed. `is_least`: it was there when the watch began, so it is older."""

    ms: int
    is_least: bool


NO_LAG: Final = Lag(0, False)


@dataclass(frozen=True, slots=True)
class Moment:
    """One look at all partitions. `arrived` is the number behind the last record that is in the inbox."""

    now_ms: int
    taken: tuple[int, ...]
    emitted: tuple[int, ...]
    arrived: tuple[int, ...]


class History:
    """The last looks at one job. One thread uses it; a look at another job of the same name begins it anew."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque(maxlen=MOMENTS)
        self._made_at_ms = -1

    def __len__(self) -> int:
        return len(self._moments)

    def add(self, facts: JobFacts) -> None:
        """Remembers this look. One that is not newer than the last one is left out."""
        if facts.record.made_at_ms != self._made_at_ms:
            self._made_at_ms = facts.record.made_at_ms
            self._moments = deque(maxlen=max(2, min(MOMENTS, CELLS // max(1, len(facts.partitions)))))
        if self._moments and facts.now_ms <= self._moments[-1].now_ms:
            return
        self._moments.append(
            Moment(
                facts.now_ms,
                tuple(each.taken for each in facts.partitions),
                tuple(each.emitted for each in facts.partitions),
                tuple(next_number(each) + each.backlog for each in facts.partitions),
            )
        )

    def rates(self, index: int) -> tuple[float, float]:
        """(taken, emitted) records a second of the partition with this index; 0 before the second look."""
        if len(self._moments) < 2:
            return 0.0, 0.0
        last = self._moments[-1]
        first = next(each for each in self._moments if last.now_ms - each.now_ms <= RATE_SECONDS * 1000)
        if first is last:
            first = self._moments[-2]
        seconds = (last.now_ms - first.now_ms) / 1000
        return (
            max(0, last.taken[index] - first.taken[index]) / seconds,
            max(0, last.emitted[index] - first.emitted[index]) / seconds,
        )

    def lag(self, index: int, partition: PartitionFacts, now_ms: int) -> Lag:
        """How long the oldest record of the partition's backlog has waited. Exact to the time between two looks."""
        if not partition.backlog:
            return NO_LAG
        number = next_number(partition)
        for place, moment in enumerate(self._moments):
            if moment.arrived[index] > number:
                return Lag(max(0, now_ms - moment.now_ms), place == 0)
        return NO_LAG


def next_number(partition: PartitionFacts) -> int:
    """Number of the next record to process: an entry's id says how many records are before it."""
    first = partition.position.entry.partition("-")[0]
    # In front of a control entry the position counts commits of timers, not records; there the backlog is 0.
    return int(first) + (partition.position.record if partition.backlog else 0)
