"""Evening out the load: one partition goes from a worker that is too busy to one that is not. Pure functions.

Each move makes the sum of the squares of the workers' loads smaller, so that a load that stays as it is comes to rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from pipeline.facts import JobFacts, PartitionFacts, WorkerFacts
from pipeline.nodes import busy_share

BUSY: Final = 0.85
"""A worker that is busy for a larger share of its time than this gives something away..."""

RESTED: Final = 0.5
"""...to one that is so for a smaller share than this. The gap keeps a partition from coming back."""

GAIN: Final = 0.1
"""The busier of the two must come down by as much, or it is not worth the pause."""

WARM_UP_MS: Final = 10_000
"""So long the load must be uneven, and the partitions where they are: twice the time that shares are measured over."""


def is_uneven(facts: JobFacts) -> bool:
    """True when one worker is too busy while another of its pool has time."""
    shares: dict[str, list[float]] = {}
    for worker in facts.workers:
        if not worker.is_reported_dead:
            shares.setdefault(worker.pool, []).append(busy_share(worker))
    return any(max(each) > BUSY and min(each) < RESTED for each in shares.values())


def evening(able: Collection[WorkerFacts], kept: Collection[PartitionFacts]) -> tuple[PartitionFacts, str] | None:
    """The one move that evens out two workers best, the busiest one that has one and the one with most time; or None.

    kept: the partitions that may move, each with a live owner.
    """
    loads = {worker.name: busy_share(worker) for worker in able}
    busiest = sorted((name for name, load in loads.items() if load > BUSY), key=lambda name: (-loads[name], name))
    rested = min(loads, key=lambda name: (loads[name], name), default=None)
    if rested is None or loads[rested] >= RESTED:
        return None
    shares = {(worker.name, name): share for worker in able for name, share in part_shares(worker)}
    for name in busiest:
        mine = [(part, shares.get((name, part.name), 0.0)) for part in kept if part.owner == name]
        better = [
            (max(loads[name] - share, loads[rested] + share), part.stage, part.partition, part)
            for part, share in mine
            if loads[rested] + share <= BUSY and share >= GAIN
        ]
        best = min(better, default=None, key=lambda row: row[:3])
        if best is not None and best[0] <= loads[name] - GAIN:
            return best[3], rested
    return None


def part_shares(worker: WorkerFacts) -> Iterator[tuple[str, float]]:
    """Partition, as `stage.partition` -> the share of the last seconds in which the worker has worked for it."""
    parts = worker.report.get("parts")
    for name, told in parts.items() if isinstance(parts, dict) else ():
        if isinstance(told, list) and len(told) == 3 and isinstance(told[2], int | float) and 0 <= told[2] <= 1:
            yield name, float(told[2])
