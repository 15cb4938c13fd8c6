"""What fails at each look is logged when it appears, when it changes, once a minute meanwhile, and when it is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from pipeline.errors import CeleriacError, StoreUnavailable

AGAIN_SECONDS: Final = 60.0


class FaultLog:
    """For one thing that is tried again and again, by one thread at a time.

    what: what cannot be done, as the log says it. clock: in seconds, from any moment on.
    """

    def __init__(self, log: logging.Logger, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._what = what
        self._clock = clock
        self._fault = ""
        self._since = self._told_at = 0.0

    def met(self, error: CeleriacError) -> None:
        """Once more it has failed."""
        # An outage begins with a closed connection and goes on with a refused one: that is one fault.
        fault = StoreUnavailable.__name__ if isinstance(error, StoreUnavailable) else f"{type(error).__name__}: {error}"
        now = self._clock()
        if fault != self._fault:
            self._since = self._since if self._fault else now
            hint = f" ({error.hint})" if error.hint else ""
            self._log.warning("%s: %s%s", self._what, error, hint)
        elif now - self._told_at >= AGAIN_SECONDS:
            self._log.warning("%s, for %.0f s by now: %s", self._what, now - self._since, error)
        else:
            return
        self._fault, self._told_at = fault, now

    def over(self) -> None:
        """This time it has not failed."""
        if self._fault:
            self._log.warning("over after %.1f s: %s", self._clock() - self._since, self._what)
            self._fault = ""
