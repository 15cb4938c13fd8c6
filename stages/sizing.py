"""Keeps as many workers of a pool on this node as Redis says are wanted: starts the next numbers, and lets the
highest ones go.

A worker that is to go owns nothing before it is asked to end: the leader gives its partitions away while it still
works on them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pipeline.pools import POOL
from pipeline.store.agents import AgentLink
from stages.agent import Agent
from stages.looking import look_again
from stages.supervision import WORKER, ChildSpec, ChildState, ChildStatus

LOOK_SECONDS: Final = 0.25

LEAVE_SECONDS: Final = 10.0
"""One that still owns something then, since nobody could take it, ends all the same: that is as clean, only slower."""

STOP_SECONDS: Final = 5.0
"""Between SIGTERM and SIGKILL of a worker that owns nothing."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sizing:
    """Follows the wanted number. `spec_of` makes the spec of the pool's worker number n, with the incarnations before.

    Runs in a thread of its own, with a link of its own.
    """

    agent: Agent
    link: AgentLink
    spec_of: Callable[[int, Mapping[str, int]], ChildSpec]
    clock: Callable[[], float] = time.monotonic
    pool: str = POOL
    _leaving: dict[str, float] = field(default_factory=dict)
    """Worker that is to go -> when it is asked to end at the latest."""

    def run(self, stop: threading.Event) -> None:
        """Looks again and again until `stop`, or until the job is gone. An outage of Redis is waited out."""
        look_again(self.run_once, stop, LOOK_SECONDS, _log, "the wanted number of workers")

    def run_once(self) -> None:
        """One look. Raises StoreError, UnknownJob."""
        wanted = self.link.workers_wanted(self.pool)
        if wanted is None:
            return
        workers = {child.name: child for child in self.agent.children() if child.role == WORKER}
        self._leaving = {name: at for name, at in self._leaving.items() if _is_there(workers[name])}
        numbers = {self.spec_of(number, {}).name: number for number in range(max(wanted, len(workers)))}
        for name, number in numbers.items():
            child = workers.get(name)
            if number < wanted:
                self._keep(name, number, child)
            elif child is not None and _is_there(child):
                self._let_go(child)

    def _keep(self, name: str, number: int, child: ChildStatus | None) -> None:
        if child is None or child.state is ChildState.DONE:
            self.agent.add(self.spec_of(number, self.link.incarnations()))
            _log.info("one more worker is wanted: worker=%s", name)
        elif name in self._leaving and self._leaving[name] > 0:
            self.link.mark_leaving(name, child.incarnation, is_leaving=False)
            del self._leaving[name]

    def _let_go(self, child: ChildStatus) -> None:
        now = self.clock()
        until = self._leaving.setdefault(child.name, now + LEAVE_SECONDS)
        if until <= 0:
            return  # it was asked to end
        was_heard = self.link.mark_leaving(child.name, child.incarnation, is_leaving=True)
        if not was_heard or now >= until or not self.link.owns(child.name, child.incarnation):
            self._leaving[child.name] = 0.0
            self.agent.retire(child.name, STOP_SECONDS)
            _log.info("one worker less is wanted: worker=%s", child.name)


def _is_there(child: ChildStatus) -> bool:
    return child.state is not ChildState.DONE
