"""What a job has to do and what it can do, measured over a window: the only thing that a scaling policy sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pipeline.pools import POOL

LEAST_RATE: Final = 1e-6
"""Less than this a second was not measured, whatever the window: it is nothing."""


@dataclass(frozen=True, slots=True)
class StageLoad:
    """One stage. Rates are records a second over the window; what stands is as it was at its end.

    arrival_rate: records that came. taken_rate: records that were processed.
    busy_workers: seconds that workers spent on it, per second; waiting for a full inbox or a back-off is not work.
    oldest_seconds: age of its oldest record, at least.
    is_stopped: it is paused; or half of its partitions with a backlog, or more, wait for a sink, a reader or a paused
        stage, which no worker speeds up.
    is_held_back: its inboxes are full, so its senders would send more than what came.
    """

    index: int
    name: str
    upstream: tuple[int, ...]
    partitions: int
    arrival_rate: float
    taken_rate: float
    busy_workers: float
    backlog: int
    oldest_seconds: float = 0.0
    is_stopped: bool = False
    is_held_back: bool = False
    pool: str = POOL

    @property
    def true_rate(self) -> float | None:
        """Records that one worker processes in a second in which it does nothing else; None when it is not known."""
        if self.taken_rate < LEAST_RATE or self.busy_workers < LEAST_RATE:
            return None
        return self.taken_rate / self.busy_workers


@dataclass(frozen=True, slots=True)
class Load:
    """All stages, upstream first, and the workers of one pool, which serve those that are `own`.

    seconds: the length of the window. workers: those of agents that are there; others: those that run by themselves.
    wanted: how many agents keep now.
    """

    seconds: float
    stages: tuple[StageLoad, ...]
    workers: int
    wanted: int
    others: int = 0
    pool: str = POOL

    @property
    def own(self) -> tuple[StageLoad, ...]:
        """The stages that its workers serve."""
        return tuple(stage for stage in self.stages if stage.pool == self.pool)

    @property
    def oldest_seconds(self) -> float:
        """Of what more workers would make younger."""
        return max((stage.oldest_seconds for stage in self.own if not stage.is_stopped), default=0.0)

    @property
    def busy_share(self) -> float | None:
        """Share of their time that the workers work, on average; None while there are none."""
        there = self.workers + self.others
        return sum(stage.busy_workers for stage in self.own) / there if there else None

    @property
    def backlog(self) -> int:
        return sum(stage.backlog for stage in self.own)
