"""The loop of a thread that follows something in Redis: it looks, and looks again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pipeline.errors import CeleriacError, StoreUnavailable, UnknownJob


def look_again(
    look: Callable[[], None], stop: threading.Event, seconds: float, log: logging.Logger, followed: str
) -> None:
    """Looks every so many seconds until `stop`, or until the job is gone. An outage of Redis is waited out, told once.

    followed: what is looked at, for the log.
    """
    is_failing = False
    while not stop.wait(seconds):
        try:
            look()
        except UnknownJob:
            return
        except StoreUnavailable as error:
            if not is_failing:
                log.warning("%s cannot be read: %s", followed, error)
            is_failing = True
        except CeleriacError as error:
            log.error("%s cannot be followed: %s", followed, error)
        else:
            is_failing = False
