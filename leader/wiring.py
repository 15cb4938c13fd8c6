"""Puts a leader's parts together: one place that knows all duties and their order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from leader.duties.books import BookKeeping
from leader.duties.ending import Ending
from leader.duties.gate import Gate
from leader.duties.lifecycle import Lifecycle
from leader.duties.placement import Placement
from leader.duties.readers import Readers
from leader.duties.retention import Retention
from leader.duties.retry import Retry
from leader.duties.visitors import Visitors
from leader.round import Duties, Round
from pipeline.store.books import BookStore
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import LeaderRegistry, Leadership
from pipeline.store.scripts import Scripts


def make_round(
    redis_url: str,
    name: str,
    rng: random.Random | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Round:
    """The round of the leader process `name`. Its nonces come from `rng`, by default the system's source.

    Connects when first run. Raises UnsuitableServer for an address that cannot be understood.
    """
    rng = rng or random.SystemRandom()
    scripts = Scripts(connect(redis_url))
    jobs = JobStore(scripts)
    leadership = Leadership(scripts, name, f"{rng.getrandbits(64):016x}")

    def make_duties() -> Duties:
        retention, readers = Retention(leadership), Readers(leadership)
        books = BookKeeping(BookStore(scripts))
        return Duties(
            working=(
                Gate(leadership, jobs.memory),
                Placement(leadership, jobs.run_id, rng),
                Retry(leadership, rng),
                Ending(leadership),
                Lifecycle(jobs),
                retention,
                Visitors(leadership),
                readers,
                books,
            ),
            ended=(retention, readers, books),
        )

    return Round(jobs, leadership, LeaderRegistry(scripts, name), make_duties, clock)
