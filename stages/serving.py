"""A slice as a worker process runs it: what nobody handles, and what does not end, ends the process.

So it counts as a death. Celery would log an error and go on, and the same record would be tried for ever.
"""

from __future__ import annotations

import logging
import os
from time import monotonic
from typing import Final

from stages.worker import Worker

logger = logging.getLogger(__name__)

UNHANDLED: Final = 70
"""The exit code of a worker that ends by an error that nobody handles."""

STUCK: Final = 71
"""The exit code of a worker that was held by one record for too long."""

_LOOKS: Final = 5
"""Looks in a row, a pulse apart: the leader hears of it before, and a process that was only stopped goes on."""


def serve(worker: Worker, stage: int, partition: int) -> None:
    """Serves a ticket. Does not return when user code raised KeyboardInterrupt or its like, or for a fault of ours."""
    is_handled = False
    try:
        worker.work(stage, partition)
        is_handled = True
    finally:
        if not is_handled:
            logger.critical("this worker ends: stage=%d partition=%d", stage, partition, exc_info=True)
            logging.shutdown()
            os._exit(UNHANDLED)


class StuckGuard:
    """Ends the process when one record, or a timer, has been in the hands of user code for too long."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._looks = 0

    def look(self) -> None:
        """Called again and again by a thread that user code does not hold up."""
        held = self._worker.hand.held_longer(monotonic(), self._worker.plan.limits.stuck_seconds)
        self._looks = self._looks + 1 if held else 0
        if self._looks >= _LOOKS:
            logger.critical("this worker ends, one record holds it up: job=%s %s", self._worker.ownership.job, held)
            logging.shutdown()
            os._exit(STUCK)
