"""How a node ends: it gives away what its workers own, so that partitions need not wait for a lease.

An operator has it drained first, and it looks for that; or it is asked by a signal, and sees to it by itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pipeline.errors import DecodingError, StoreError
from pipeline.facts import PartitionFacts
from pipeline.faultlog import FaultLog
from pipeline.lifecycle import WORKING
from pipeline.nodes import able_workers, owned_by
from pipeline.store.agents import AgentLink
from pipeline.store.jobs import JobStore
from pipeline.store.moving import MovingStore
from pipeline.store.scripts import Scripts
from stages.agent import Agent
from stages.supervision import WORKER, ChildState

GIVE_SECONDS: Final = 4.0
"""With the five that workers get to end then, less than the ten that container engines give."""

LOOK_SECONDS: Final = 0.1

_NAMED: Final = 10

_log = logging.getLogger(__name__)


class Leaving:
    """Says when the node was drained to be stopped, and its workers own nothing any more."""

    def __init__(self, scripts: Scripts, job: str, node: str) -> None:
        self._moving = MovingStore(scripts, job)
        self._jobs = JobStore(scripts)
        self._job, self._node = job, node
        self._faults = FaultLog(_log, f"job={job}: whether the node is to leave cannot be read")
        self.is_due = False

    def look(self) -> bool:
        """False also when Redis is away."""
        try:
            if self._moving.is_to_stop(self._node):
                self.is_due = not owned_by(self._jobs.facts(self._job), self._node)
        except (StoreError, DecodingError) as error:
            self._faults.met(error)
        else:
            self._faults.over()
        return self.is_due


@dataclass(frozen=True, slots=True)
class _Left:
    """What the workers own yet, and what of that somebody else could take."""

    owned: list[str]
    takable: list[str]


@dataclass(slots=True)
class GivingAway:
    """For one agent and one job, with stores of its own."""

    agent: Agent
    link: AgentLink
    store: JobStore
    job: str
    clock: Callable[[], float] = time.monotonic

    def run(self, hurry: threading.Event) -> None:
        """Has the leader give all that the agent's workers own to others, who take it without a pause.

        Returns when they own nothing, or nothing that somebody else could take, or when it is to hurry, or after
        GIVE_SECONDS: what is left then goes to others when the lease is over, or waits in Redis.
        """
        until, left = self.clock() + GIVE_SECONDS, _Left([], [])
        is_told = False
        faults = FaultLog(_log, f"job={self.job}: nothing can be given away now")
        while True:
            try:
                left = self._look()
            except (StoreError, DecodingError) as error:
                faults.met(error)
            else:
                faults.over()
                if not left.takable:
                    break
                if not is_told:
                    _log.info("job=%s: gives away %s; a second signal ends it at once", self.job, _named(left.owned))
                    is_told = True
            if self.clock() >= until or hurry.wait(LOOK_SECONDS):
                break
        self._tell(left, is_told)

    def _look(self) -> _Left:
        """Says again which workers are to end, of which some may have been started anew; what they own. Raises
        StoreError, DecodingError.
        """
        workers = [child for child in self.agent.children() if child.role == WORKER]
        for child in workers:
            if child.state is not ChildState.DONE:
                self.link.mark_leaving(child.name, child.incarnation, is_leaving=True)
        names, facts = {child.name for child in workers}, self.store.facts(self.job)
        if facts.record.state not in WORKING:
            return _Left([], [])
        owned = [part for part in facts.partitions if part.owner in names and not part.is_through]
        pools = {one.pool for one in able_workers(facts) if one.name not in names}

        def can_go(part: PartitionFacts) -> bool:
            return facts.record.plan.pool_of(part.stage) in pools

        return _Left([part.name for part in owned], [part.name for part in owned if can_go(part)])

    def _tell(self, left: _Left, is_told: bool) -> None:
        if left.takable:
            _log.warning(
                "job=%s: not given away: %s; others take over when the lease is over", self.job, _named(left.owned)
            )
        elif left.owned:
            _log.warning(
                "job=%s: nobody else is there to take %s: what is in Redis waits for a worker",
                self.job,
                _named(left.owned),
            )
        elif is_told:
            _log.info("job=%s: all its partitions were given away", self.job)


def _named(partitions: list[str]) -> str:
    more = f" and {len(partitions) - _NAMED} more" if len(partitions) > _NAMED else ""
    return f"partition{'' if len(partitions) == 1 else 's'} {', '.join(partitions[:_NAMED])}{more}"
