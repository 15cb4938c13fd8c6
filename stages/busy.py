"""How long a worker has worked for each partition, for its heartbeat. Counted by slice, never by record."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

Place = tuple[int, int]

WINDOW_SECONDS: Final = 5.0
"""The share of a worker that is busy is that of so many seconds."""


class Busy:
    """Sums of seconds since the worker began. Written by the worker's thread, read by any.

    A slice counts as it goes on, so that one record that takes long does not look like rest.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # One object, replaced as a whole: whoever reads it never sees a half of a change.
        self._state: tuple[dict[Place, float], Place, float | None] = ({}, (-1, -1), None)

    @contextmanager
    def at(self, stage: int, partition: int) -> Iterator[None]:
        """What happens inside is work for the partition. It is not nested."""
        sums, started, place = self._state[0], self._clock(), (stage, partition)
        self._state = (sums, place, started)
        try:
            yield
        finally:
            self._state = ({**sums, place: sums.get(place, 0.0) + self._clock() - started}, (-1, -1), None)

    def report(self, now: float) -> dict[str, float]:
        """Stage -> seconds, with those of the slice that goes on."""
        found: dict[int, float] = {}
        for (stage, _), seconds in self.places(now).items():
            found[stage] = found.get(stage, 0.0) + seconds
        return {str(index): round(seconds, 4) for index, seconds in found.items()}

    def places(self, now: float) -> dict[Place, float]:
        """The same for each partition that the worker has ever worked for."""
        sums, place, started = self._state
        if started is None:
            return sums
        return {**sums, place: sums.get(place, 0.0) + max(0.0, now - started)}


class Shares:
    """Which part of the last seconds was work, and for what. Used by one thread, which tells again and again."""

    def __init__(self) -> None:
        self._sums: deque[tuple[float, dict[Place, float]]] = deque()

    def note(self, now: float, sums: dict[Place, float]) -> None:
        """`sums`: as from `Busy.places`."""
        self._sums.append((now, sums))
        while len(self._sums) > 2 and self._sums[1][0] <= now - WINDOW_SECONDS:
            self._sums.popleft()

    def of(self, place: Place) -> float:
        """The partition's share, 0 to 1."""
        (began, before), (now, sums) = self._sums[0], self._sums[-1]
        if now <= began:
            return 0.0
        return round(min(1.0, (sums.get(place, 0.0) - before.get(place, 0.0)) / (now - began)), 3)

    def total(self) -> float:
        """The share of all together."""
        return round(min(1.0, sum(self.of(place) for place in self._sums[-1][1])), 3)
