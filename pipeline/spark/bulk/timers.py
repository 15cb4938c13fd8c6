"""The timers of one task that are set and have not fired, in firing order: by due time, upstream operators first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count

from pipeline.kernel.contract import Step
from pipeline.records import Timer


class OpenTimers:
    """A timer that is cleared stays in the heap until its turn comes, and is passed over then."""

    def __init__(self, operators: Sequence[str]) -> None:
        self._rank = {operator: place for place, operator in enumerate(operators)}
        self._open: dict[Timer, int] = {}
        self._heap: list[tuple[int, int, int, Timer]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Timer]:
        """All that are open, in the order in which they were set."""
        return iter(self._open)

    def add(self, timer: Timer) -> None:
        """Sets it; nothing changes where it is set."""
        if timer not in self._open:
            number = self._open[timer] = next(self._numbers)
            heapq.heappush(self._heap, (timer.due, self._rank.get(timer.operator, -1), number, timer))

    def take(self, most: int) -> list[Timer]:
        """The next ones to fire. They are no longer open: what did not fire must be put back."""
        taken: list[Timer] = []
        while self._heap and len(taken) < most:
            *_, number, timer = heapq.heappop(self._heap)
            if self._open.get(timer) == number:
                del self._open[timer]
                taken.append(timer)
        return taken

    def put_back(self, timers: Sequence[Timer]) -> None:
        for timer in timers:
            self.add(timer)

    def change(self, step: Step, given: Sequence[Timer] = ()) -> None:
        """What a step has set and cleared; of the timers that it was `given` those that have not fired stay open."""
        cleared = set(step.timers_cleared)
        self.put_back([timer for timer in given if timer not in cleared])
        for timer in cleared:
            self._open.pop(timer, None)
        for timer in step.timers_set:
            self.add(timer)
