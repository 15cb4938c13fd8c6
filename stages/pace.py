"""How many records the next step takes, from what the last steps cost: a slow operator gets few, a fast one many."""

from __future__ import annotations

from typing import Final

from pipeline.settings import Limits

_FIRST: Final = 1
_GROWTH: Final = 4
_PART: Final = 8
_LARGEST_PART: Final = 512
"""A look at the clock after so many records costs the fastest functions about 2 %."""


class Pace:
    """Learns seconds and outputs per record. A step should take half a slice and stay below the bound of outputs."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
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
        by_time = records * self._limits.slice_seconds / 2 / max(seconds, 1e-9)
        by_outputs = records * self._limits.step_outputs / max(outputs, 1)
        most = min(self._limits.step_records, _GROWTH * self._allowance)
        self._allowance = max(1, int(min(most, by_time, by_outputs)))
