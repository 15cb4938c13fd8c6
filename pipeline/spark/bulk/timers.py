"""The timers of one task that are set and have not fired, in firing order: by due time, upstream operators first."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Final, TypeAlias

from pipeline.kernel.contract import Step
from pipeline.records import Timer

Moment: TypeAlias = tuple[int, int, str]
"""Due time, and the operator behind its place in firing order."""


_DUE: Final = attrgetter("due", "operator")


class OpenTimers:
    """Those of one moment are together, by key: at the end of input it may be every key's.

    A moment of which none is left stays in the heap until its turn comes, and is passed over then.
    """

    def __init__(self, operators: Sequence[str]) -> None:
        self._rank = {operator: place for place, operator in enumerate(operators)}
        self._open: dict[Moment, OrderedDict[Any, Timer]] = {}
        self._heap: list[Moment] = []

    def __bool__(self) -> bool:
        return bool(self._open)

    def __iter__(self) -> Iterator[Timer]:
        """All that are open; those of one moment in the order in which they were set."""
        for waiting in self._open.values():
            yield from waiting.values()

    def add(self, timers: Iterable[Timer]) -> None:
        """Sets them; nothing changes for one that is set."""
        for (due, operator), together in groupby(timers, key=_DUE):
            moment = self._moment(due, operator)
            waiting = self._open.get(moment)
            if waiting is None:
                # To take from the front of a plain dict is to pass over all that went before.
                waiting = self._open[moment] = OrderedDict()
                heapq.heappush(self._heap, moment)
            for timer in together:
                waiting.setdefault(timer.key, timer)

    def take(self, most: int) -> list[Timer]:
        """The next ones to fire. They are no longer open: what did not fire must be put back."""
        taken: list[Timer] = []
        while self._heap and len(taken) < most:
            waiting = self._open.get(self._heap[0], OrderedDict())
            next_keys = list(islice(waiting, most - len(taken)))
            taken += map(waiting.pop, next_keys)
            if not waiting:
                self._open.pop(heapq.heappop(self._heap), None)
        return taken

    def change(self, step: Step, given: Sequence[Timer] = ()) -> None:
        """What a step has set and cleared; of the timers that it was `given` those that have not fired stay open."""
        left = {(timer.operator, timer.key, timer.due): timer for timer in given}
        for timer in step.timers_cleared:
            if left.pop((timer.operator, timer.key, timer.due), None) is None:
                self._remove(timer)
        self.add(left.values())
        self.add(step.timers_set)

    def _remove(self, timer: Timer) -> None:
        moment = self._moment(timer.due, timer.operator)
        waiting = self._open.get(moment, OrderedDict())
        if waiting.pop(timer.key, None) is not None and not waiting:
            del self._open[moment]

    def _moment(self, due: int, operator: str) -> Moment:
        return due, self._rank.get(operator, -1), operator
