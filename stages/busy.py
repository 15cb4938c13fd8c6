"""How long a worker has worked for each stage, for its heartbeat. Counted by slice, never by record."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

WINDOW_SECONDS: Final = 5.0
"""The share of a worker that is busy is that of so many seconds."""


class Busy:
    """Sums of seconds since the worker began. Written by the worker's thread, read by any.

    A slice counts as it goes on, so that one record that takes long does not look like rest.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # One object, replaced as a whole: whoever reads it never sees a half of a change.
        self._state: tuple[dict[int, float], int, float | None] = ({}, -1, None)

    @contextmanager
    def at(self, stage: int) -> Iterator[None]:
        """What happens inside is work for the stage. It is not nested."""
        sums, started = self._state[0], self._clock()
        self._state = (sums, stage, started)
        try:
            yield
        finally:
            self._state = ({**sums, stage: sums.get(stage, 0.0) + self._clock() - started}, -1, None)

    def report(self, now: float) -> dict[str, float]:
        """Stage -> seconds, with those of the slice that goes on."""
        sums, stage, started = self._state
        found = dict(sums)
        if started is not None:
            found[stage] = found.get(stage, 0.0) + max(0.0, now - started)
        return {str(index): round(seconds, 4) for index, seconds in found.items()}


class Share:
    """Which part of the last seconds was work. Used by one thread, which says again and again how much there was."""

    def __init__(self) -> None:
        self._sums: deque[tuple[float, float]] = deque()

    def of(self, now: float, seconds: float) -> float:
        """0 to 1. `seconds`: the work since the beginning."""
        self._sums.append((now, seconds))
        while len(self._sums) > 2 and self._sums[1][0] <= now - WINDOW_SECONDS:
            self._sums.popleft()
        at, before = self._sums[0]
        return round(min(1.0, (seconds - before) / (now - at)), 3) if now > at else 0.0
