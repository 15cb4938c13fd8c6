"""The clock of a leader: a Celery beat scheduler that rings instead of queueing. It keeps no schedule file.

A tick has no expiry and no ETA, so clocks that differ do no harm; a leader that was busy finds one tick, not many.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.beat import Scheduler

from pipeline.errors import StoreError
from pipeline.faultlog import FaultLog
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.leadership import LeaderRegistry
from pipeline.store.scripts import Scripts
from pipeline.tickets import TICK, message

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25


class Ring:
    """Queues this leader's tick. Connects at its first use, which is in the process that rings."""

    def __init__(self, redis_url: str, name: str) -> None:
        self._redis_url = redis_url
        self._name = name
        queue = keys.leader_queue_name(name)
        self._tick = message(TICK, queue, queue, [])
        self._registry: LeaderRegistry | None = None
        self._faults = FaultLog(logger, "the leader's clock cannot ring")

    def ring(self) -> bool:
        """True if a tick was queued. An unreachable Redis is logged and tried again at the next call."""
        if self._registry is None:
            self._registry = LeaderRegistry(Scripts(connect(self._redis_url)), self._name)
        try:
            is_queued = self._registry.ring(self._tick)
        except StoreError as error:
            self._faults.met(error)
            return False
        self._faults.over()
        return is_queued


class RingingScheduler(Scheduler):
    """A schedule in memory whose one entry rings."""

    def __init__(self, app: Any, ring: Ring, **options: Any) -> None:
        self._ring = ring
        super().__init__(app, **options)

    def tick(self) -> float:
        """Rings; the seconds until the next time. Celery's own goes by the wall clock: set back, it does not ring."""
        self._ring.ring()
        return TICK_SECONDS

    @property
    def producer(self) -> None:
        """None: nothing is published through Celery, so no broker connection is opened."""
        return
