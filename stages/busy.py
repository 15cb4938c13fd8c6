"""How long a worker has worked for each stage, for its heartbeat. Counted by slice, never by record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
