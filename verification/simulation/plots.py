"""What is simulated: a pipeline with its input, and who takes part. A seed composes its own cast."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline import Pipeline
from pipeline.settings import Limits
from verification.actors import Leader, LetterClerk, Producer, Reader, Source, Submitter, Worker
from verification.scenarios import LINES, fragile, numbers, sequence, timers, words
from verification.world import Actor, Scenario

_LEASE_SECONDS: Final = 1.0
_ENDLESS_DEATHS: Final = 1_000
"""Workers die by chance here, so it is never the fault of a record."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One job, whose end is the same whoever takes part. `feeders`: who brings its input, and others than the usual."""

    name: str
    pipeline: Callable[[Path], Pipeline]
    feeders: Callable[[random.Random], Sequence[Actor]]
    most_partitions: int = 3
    narrow: bool = False


PLOTS: Final[Sequence[Plot]] = (
    Plot("a split", numbers, lambda rng: [Source([sequence("abc", 5)], by=rng.randint(1, 5))]),
    Plot(
        "splits with positions",
        words,
        lambda rng: [Source([LINES[:3], LINES[3:]], by=rng.randint(1, 3), seeks=True)],
    ),
    Plot("a producer", numbers, lambda rng: [Producer(sequence("ab", 6), by=rng.randint(1, 5))]),
    Plot(
        "a producer without a name, with ids",
        numbers,
        lambda rng: [Producer(sequence("ab", 5), by=rng.randint(1, 4), has_ids=True)],
        most_partitions=1,
    ),
    Plot("a reader", words, lambda rng: [Source([LINES], by=rng.randint(1, 4), awaits="reader"), Reader()]),
    Plot(
        "full inboxes",
        words,
        lambda rng: [Source([LINES], by=rng.randint(1, 3), awaits="reader"), Reader()],
        narrow=True,
    ),
    Plot("timers", timers, lambda rng: [Source([LINES[:4]], by=rng.randint(1, 4))]),
    Plot(
        "dead letters",
        fragile,
        lambda rng: [
            Producer([1, -2, 3, 4, -5, 6, -7, 8], by=rng.randint(1, 4), drains=False),
            LetterClerk({-2: 2, -5: None, -7: 7}, taken=18),
        ],
        most_partitions=1,
    ),
)


def composed(plot: Plot, rng: random.Random) -> Scenario:
    """The plot with partitions, workers and leaders as chance has it."""
    partitions = rng.randint(1, plot.most_partitions)
    workers, leaders = rng.choice((1, 2, 2, 3)), rng.choice((1, 1, 2))
    feeders = list(plot.feeders(rng))
    limits = Limits(
        lease_seconds=_LEASE_SECONDS,
        deaths=_ENDLESS_DEATHS,
        inbox_records=rng.randint(2, 6) if plot.narrow else 1_000,
        step_records=rng.choice((2, 4, 8_000)),
    )

    def actors() -> list[Actor]:
        return [
            Submitter(),
            *feeders,
            *(Leader(f"leader-{number}") for number in range(1, leaders + 1)),
            *(Worker(f"w{number}") for number in range(workers)),
        ]

    return Scenario(plot.name, plot.pipeline, actors, partitions, limits)
