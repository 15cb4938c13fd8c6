"""A slice as a worker process runs it: what nobody handles ends the process, so that it counts as a death.

Celery would log it and go on, and the same record would be tried for ever.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from stages.worker import Worker

logger = logging.getLogger(__name__)

UNHANDLED: Final = 70
"""The exit code of a worker that ends so."""


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
