"""One seed: composes a job and its faults, runs it, and compares its end with the run without faults."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from verification.matrix import difference
from verification.simulation.fates import Fates
from verification.simulation.oracle import Broken
from verification.simulation.plots import PLOTS, Plot, composed
from verification.simulation.trace import Trace
from verification.simulation.world import SimulatedWorld
from verification.world import Stalled


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed. `failure` is empty when it ended as it must."""

    seed: int
    plot: str
    failure: str
    trace: Trace
    seconds: float
    """Of virtual time."""


def simulate(seed: int, plots: Sequence[Plot] = PLOTS) -> Outcome:
    """The same for the same seed, in every process. Raises EnvironmentFault when the extra is missing."""
    rng = random.Random(seed)
    plot = rng.choice(plots)
    expected = expected_of(plot)
    scenario = composed(plot, rng)
    with tempfile.TemporaryDirectory(prefix="celeriac-verify-") as folder:
        world = SimulatedWorld(Path(folder), scenario, Fates.drawn(rng))
        failure = ""
        try:
            seen = world.run()
            failure = "" if seen == expected else difference(expected, seen)
        except (Stalled, Broken) as error:
            failure = f"{type(error).__name__}: {error}"
        return Outcome(seed, plot.name, failure, world.trace, world.clock())


@cache
def expected_of(plot: Plot) -> Mapping[str, Any]:
    """What can be seen at the end of a run without a fault. Raises Stalled."""
    with tempfile.TemporaryDirectory(prefix="celeriac-verify-") as folder:
        return SimulatedWorld(Path(folder), composed(plot, random.Random(0)), Fates.none()).run()
