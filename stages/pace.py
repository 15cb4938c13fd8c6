"""How many records the next step takes, from what the last steps cost: a slow operator gets few, a fast one many."""

from __future__ import annotations

import math
from typing import Final

from pipeline.settings import Limits

_FIRST: Final = 1
_GROWTH: Final = 4
_PART: Final = 8
_LARGEST_PART: Final = 512
"""A look at the clock after so many records costs the fastest functions about 2 %."""


_FIXED_COST_STEP_SECONDS: Final = 0.1
"""Starting a program costs about 10 ms, and as much again in a worker that holds much state."""

_FRAME_STEP_SECONDS: Final = 2.0
"""A job of Spark costs from 50 ms to a second, now more and now less, which says nothing of the records."""


class Pace:
    """Learns seconds and outputs per record. A step should take a slice and stay below the bound of outputs.

    Whatever is shorter costs more: each key that a step changes is written once, however often it comes.

    With a fixed cost, that of starting a program or a job of Spark, what the cheapest step took is not counted, and
    steps are longer: else few records would be taken because each step is dear, and each record would be dear because
    few are.
    """

    def __init__(self, limits: Limits, *, has_fixed_cost: bool = False, has_frames: bool = False) -> None:
        self._limits = limits
        has_fixed_cost = has_fixed_cost or has_frames
        self._step_seconds = _FIXED_COST_STEP_SECONDS if has_fixed_cost else limits.slice_seconds
        if has_frames:
            self._step_seconds = _FRAME_STEP_SECONDS
        self._has_fixed_cost = has_fixed_cost
        self._cheapest_seconds = math.inf
        self._allowance = _FIRST

    def allowance(self) -> int:
        """At least 1."""
        return self._allowance

    def part(self) -> int:
        """After how many records a step looks at the clock, in case its records are slower than those before."""
        return max(1, min(_LARGEST_PART, self._allowance // _PART))

    def note(self, records: int, outputs: int, seconds: float) -> None:
        """A step of `records` took `seconds` and emitted `outputs`."""
        if not records:
            return
        if self._has_fixed_cost:
            self._cheapest_seconds = min(self._cheapest_seconds, seconds)
            seconds -= self._cheapest_seconds
        by_time = records * self._step_seconds / max(seconds, 1e-9)
        by_outputs = records * self._limits.step_outputs / max(outputs, 1)
        most = min(self._limits.step_records, _GROWTH * self._allowance)
        self._allowance = max(1, int(min(most, by_time, by_outputs)))
