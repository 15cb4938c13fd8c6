"""Puts a leader's parts together: one place that knows all duties and their order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from leader.duties.autoscale import Autoscale
from leader.duties.books import BookKeeping
from leader.duties.cuts import Cuts
from leader.duties.ending import Ending
from leader.duties.gate import Gate
from leader.duties.heldback import HeldBack
from leader.duties.lifecycle import Lifecycle
from leader.duties.placement import Placement
from leader.duties.readers import Readers
from leader.duties.rescaling import Rescaling
from leader.duties.restarts import Memory, Restarts
from leader.duties.retention import Retention
from leader.duties.retry import Retry
from leader.duties.shadows import Shadows
from leader.duties.visitors import Visitors
from leader.round import Duties, Round
from pipeline.store.books import BookStore
from pipeline.store.jobs import JobStore
from pipeline.store.leadership import LeaderRegistry, Leadership
from pipeline.store.operations import OperationStore
from pipeline.store.scaling import ScalingStore
from pipeline.store.scripts import Scripts


def make_round(
    scripts: Scripts,
    name: str,
    rng: random.Random | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Round:
    """The round of the leader process `name`. Its nonces come from `rng`, by default the system's source."""
    rng = rng or random.SystemRandom()
    jobs = JobStore(scripts)
    leadership = Leadership(scripts, name, f"{rng.getrandbits(64):016x}")

    memory = Memory()

    def make_duties() -> Duties:
        retention, readers = Retention(leadership), Readers(leadership)
        restarts = Restarts(scripts, leadership, memory)
        books = BookKeeping(BookStore(scripts))
        cuts, shadows, held_back = Cuts(scripts), Shadows(scripts), HeldBack(scripts)
        operations = OperationStore(scripts)
        placement = Placement(scripts, leadership, lambda: leadership.server, rng)
        return Duties(
            working=(
                restarts,
                Gate(leadership, jobs.memory),
                placement,
                Rescaling(operations, jobs.facts, placement),
                Retry(leadership, rng),
                Ending(leadership),
                Lifecycle(jobs),
                Autoscale(ScalingStore(scripts), operations),
                retention,
                Visitors(leadership),
                readers,
                books,
                cuts,
                shadows,
                held_back,
            ),
            ended=(retention, readers, books, cuts, shadows, held_back),
            restarting=(restarts,),
        )

    remembered = (memory.seen, memory.since_ms)
    return Round(jobs, leadership, LeaderRegistry(scripts, name), make_duties, clock, remembered)
