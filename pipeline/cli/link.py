"""Redis as a run sees it: through outages, of a foreign server and of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from pipeline.cli.interrupts import Interrupts
from pipeline.cli.screen import Screen
from pipeline.cli.services import Server
from pipeline.errors import StoreUnavailable

OUTAGE_SECONDS: Final = 120.0
_QUIET_OUTAGE_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.05

_T = TypeVar("_T")


class Link:
    """The store seen through outages: our own server is started anew, a foreign one is waited for."""

    def __init__(self, server: Server, screen: Screen, interrupts: Interrupts) -> None:
        self._server = server
        self._screen = screen
        self._interrupts = interrupts
        self._away_since: float | None = None
        self._is_told = False

    def attempt(self, call: Callable[[], _T]) -> _T | None:
        """The call's answer, or None while Redis is away.

        Raises StoreUnavailable after OUTAGE_SECONDS of that, EnvironmentFault when our own cannot be started again.
        """
        answers = self._try(call)
        return answers[0] if answers else None

    def insist(self, call: Callable[[], _T], *, above: int = 1) -> _T:
        """The answer of a call that may be repeated without harm. May wait.

        Raises as `attempt` does, and KeyboardInterrupt while it waits if there are more interrupts than `above`.
        """
        while not (answers := self._try(call)):
            self.pause(_PAUSE_SECONDS, above=above)
        return answers[0]

    def pause(self, seconds: float, *, above: int) -> None:
        """Raises KeyboardInterrupt at its end if there are more interrupts than `above`."""
        time.sleep(seconds)
        self._interrupts.check(above)

    def _look_after(self) -> None:
        with self._interrupts.deferred():  # half a start would leave a server that nobody knows
            was_dead = self._server.revive()
        if was_dead:
            self._screen.warn("Redis died and was started again; the job goes on")

    def _try(self, call: Callable[[], _T]) -> tuple[_T] | None:
        self._look_after()
        try:
            answer = call()
        except StoreUnavailable as error:
            self._wait_on(error)
            return None
        if self._is_told:
            self._screen.note("Redis is back")
        self._away_since, self._is_told = None, False
        return (answer,)

    def _wait_on(self, error: StoreUnavailable) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        away_seconds = now - self._away_since
        if away_seconds > OUTAGE_SECONDS:
            raise error
        if away_seconds > _QUIET_OUTAGE_SECONDS and not self._is_told:
            self._is_told = True
            self._screen.warn("Redis does not answer; waiting for it")
