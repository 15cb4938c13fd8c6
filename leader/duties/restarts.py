"""Another run of the server answers: what this leader has seen is compared with what is there, and old owners end.

Until then nobody commits and nothing is appended, so each partition stands where it stood when the server began.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from pipeline.errors import UnknownJob
from pipeline.facts import JobFacts
from pipeline.losses import losses_since
from pipeline.store.leadership import Leadership
from pipeline.store.losses import LossStore
from pipeline.store.scripts import Scripts

logger = logging.getLogger(__name__)

_LEASES: Final = 1.0
"""So many leases the owners get to compare what they remember, before the job goes on without them."""


@dataclass(slots=True)
class Memory:
    """What one leader process has seen last of each job, whatever its terms; and since when it sees this server."""

    seen: dict[str, JobFacts] = field(default_factory=dict)
    since_ms: dict[str, tuple[str, int]] = field(default_factory=dict)

    def first_seen_ms(self, facts: JobFacts, server: str) -> int:
        """When this run of the server was first seen with the job, in server milliseconds."""
        known = self.since_ms.get(facts.record.job)
        if known is None or known[0] != server:
            known = self.since_ms[facts.record.job] = (server, facts.now_ms)
        return known[1]


def have_compared(facts: JobFacts, server: str) -> bool:
    """True when every owner has said that it has compared what it remembers with this run of the server."""
    owners = {(part.owner, part.incarnation) for part in facts.partitions if part.owner}
    ready = {(each.name, each.incarnation) for each in facts.workers if each.report.get("server") == server}
    return owners <= ready


class Restarts:
    """Runs before all other duties, which have nothing to do while the server is not adopted."""

    name = "restarts"

    def __init__(self, scripts: Scripts, leadership: Leadership, memory: Memory) -> None:
        self._scripts = scripts
        self._leadership = leadership
        self._memory = memory

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        record, server = facts.record, self._leadership.server
        lost = self._compare(facts)
        if lost:
            return {"halted": lost}
        if record.run_id == server:
            return {}
        patience_ms = _LEASES * 1000 * record.plan.limits.lease_seconds
        waited_ms = facts.now_ms - self._memory.first_seen_ms(facts, server)
        if not have_compared(facts, server) and waited_ms < patience_ms:
            return {}
        if not self._leadership.adopt_server(record.job, token, record.plan):
            return {}
        logger.warning("Redis was restarted, all partitions are assigned anew: job=%s", record.job)
        return {"adopted": 1}

    def _compare(self, facts: JobFacts) -> int:
        """How many things this leader has seen that are lost; if there are any, the job halts. Raises StoreError."""
        job = facts.record.job
        before = self._memory.seen.get(job)
        lines = losses_since(before, facts, "the leader") if before is not None else []
        if not lines:
            self._memory.seen[job] = facts
            return 0
        try:
            LossStore(self._scripts, job).report(facts.record.run, lines)
        except UnknownJob:
            return 0
        for line in lines:
            logger.error("Redis has lost its last writes, the job halts: job=%s %s", job, line)
        return len(lines)
