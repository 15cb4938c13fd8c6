"""The loop of a thread that follows something in Redis: it looks, and looks again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pipeline.errors import CeleriacError, UnknownJob
from pipeline.faultlog import FaultLog


def look_again(
    look: Callable[[], None], stop: threading.Event, seconds: float, log: logging.Logger, followed: str
) -> None:
    """Looks every so many seconds until `stop`, or until the job is gone. What fails is tried again.

    followed: what is looked at, for the log.
    """
    faults = FaultLog(log, f"{followed} cannot be followed")
    while not stop.wait(seconds):
        try:
            look()
        except UnknownJob:
            return
        except CeleriacError as error:
            faults.met(error)
        else:
            faults.over()
