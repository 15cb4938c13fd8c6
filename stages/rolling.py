"""Has the workers of this node run the version of the pipeline that is wanted: what they own goes to others first.

Which worker changes when is for whoever upgrades the job to say, one after the other; here it is carried out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pipeline.store.agents import AgentLink
from pipeline.versions import Wanted, wanted_for
from stages.agent import Agent
from stages.looking import look_again
from stages.supervision import WORKER, ChildSpec, ChildState, ChildStatus

LOOK_SECONDS: Final = 0.25

LEAVE_SECONDS: Final = 10.0
"""One that still owns something then, since nobody could take it, is started anew all the same."""

STOP_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Rolling:
    """Follows what is wanted of each worker. `spec_of` makes the spec of a worker that runs that.

    Runs in a thread of its own, with a link of its own. `known` is what it has read last.
    """

    agent: Agent
    link: AgentLink
    spec_of: Callable[[str, Wanted | None], ChildSpec]
    known: dict[str, Wanted] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _leaving: dict[str, float] = field(default_factory=dict)
    """Worker that is to change -> when at the latest."""

    def run(self, stop: threading.Event) -> None:
        """Looks again and again until `stop`, or until the job is gone. An outage of Redis is waited out."""
        look_again(self.run_once, stop, LOOK_SECONDS, _log, "the wanted version")

    def run_once(self) -> None:
        """One look. Raises StoreError, UnknownJob."""
        self.known = self.link.rollout()
        for child in self.agent.children():
            if child.role != WORKER or child.state is ChildState.DONE:
                continue
            wanted = wanted_for(self.known, child.name)
            if wanted is None or wanted.encode() == child.version:
                self._stay(child)
            else:
                self._change(child, wanted)

    def _stay(self, child: ChildStatus) -> None:
        """The upgrade was called off while the worker was about to leave."""
        if self._leaving.pop(child.name, None) is not None:
            self.link.mark_leaving(child.name, child.incarnation, is_leaving=False)

    def _change(self, child: ChildStatus, wanted: Wanted) -> None:
        now = self.clock()
        until = self._leaving.setdefault(child.name, now + LEAVE_SECONDS)
        was_heard = self.link.mark_leaving(child.name, child.incarnation, is_leaving=True)
        is_free = not was_heard or not self.link.has_others(child.name)
        if is_free or now >= until or not self.link.owns(child.name, child.incarnation):
            del self._leaving[child.name]
            self.agent.replace(self.spec_of(child.name, wanted), STOP_SECONDS)
            _log.info("worker=%s is started anew with version %s", child.name, wanted.code)
