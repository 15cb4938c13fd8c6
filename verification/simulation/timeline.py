"""Virtual time, and processes that give way to each other only where they wait in it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from pipeline.errors import EnvironmentFault


class Timeline:
    """What happens when. Microseconds from 0 on; what is due at the same time happens in the order of its asking."""

    def __init__(self) -> None:
        """Raises EnvironmentFault when the extra is missing."""
        self.now = 0
        self._greenlets = _greenlets()
        self._hub = self._greenlets.getcurrent()
        self._due: list[tuple[int, int, Callable[[], Any]]] = []
        self._asked = 0
        self._processes: list[Any] = []

    def after(self, microseconds: int, action: Callable[[], Any]) -> None:
        """Does it after so long. What it raises ends the run."""
        self._asked += 1
        heapq.heappush(self._due, (self.now + microseconds, self._asked, action))

    def start(self, body: Callable[[], None]) -> None:
        """A process that runs from now on. What it raises ends the run."""
        process = self._greenlets.greenlet(body, self._hub)
        self._processes.append(process)
        self.after(0, process.switch)

    def sleep(self, microseconds: int) -> None:
        """Lets the others go on; only for processes."""
        self.after(microseconds, self._greenlets.getcurrent().switch)
        self._hub.switch()

    def run(self, goes_on: Callable[[], bool], until: int) -> None:
        """Runs until there is nothing left to do, or it may not go on, or the time is over."""
        while self._due and goes_on():
            at, _, action = self._due[0]
            if at > until:
                return
            heapq.heappop(self._due)
            self.now = at
            action()

    def end(self) -> None:
        """Ends all processes where they stand."""
        self._due.clear()
        for process in self._processes:
            if process:
                process.throw()
        self._processes.clear()


def _greenlets() -> Any:
    try:
        import greenlet
    except ImportError as error:
        raise EnvironmentFault(
            "the simulation switches between processes by greenlets, which are not installed",
            hint="pip install 'celeriac[verify]'",
        ) from error
    return greenlet
