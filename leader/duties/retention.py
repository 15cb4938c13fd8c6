"""Forgets what is long gone: workers that own nothing, and the tick queues of leaders that ended without a word."""

from __future__ import annotations

import logging
from typing import Final

from pipeline.facts import JobFacts, WorkerFacts
from pipeline.lifecycle import ENDED
from pipeline.store.leadership import LeaderRegistry, Leadership

logger = logging.getLogger(__name__)

SILENT_SECONDS: Final = 60.0


def forgettable(facts: JobFacts) -> list[WorkerFacts]:
    """Workers silent for long that own nothing. In an ended job ownership means nothing."""
    owners = set() if facts.record.state in ENDED else {part.owner for part in facts.partitions}
    return [one for one in facts.workers if one.age_seconds > SILENT_SECONDS and one.name not in owners]


class Retention:
    """Trims the registry of workers of one job."""

    name = "retention"

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    def run_once(self, facts: JobFacts, token: str) -> dict[str, int]:
        forgotten = 0
        for worker in forgettable(facts):
            if self._leadership.forget_worker(facts.record.job, token, worker.name, worker.incarnation):
                forgotten += 1
                logger.info("worker forgotten: job=%s worker=%s", facts.record.job, worker.name)
        return {"forgotten": forgotten} if forgotten else {}


def retire_silent_leaders(registry: LeaderRegistry) -> int:
    """Says that this leader is here, and takes out those long silent, with their queues; returns how many.

    Needs no lease: the script judges the age at the moment it acts, and whoever still lives comes back by itself.
    Raises StoreError.
    """
    retired = 0
    for leader in registry.announce(SILENT_SECONDS):
        if registry.retire(leader, SILENT_SECONDS):
            retired += 1
            logger.info("leader forgotten: leader=%s", leader)
    return retired
