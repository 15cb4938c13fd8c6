"""The clock of the server as a scenario has it: it goes on with each command, however long a run takes.

So a run repeats itself on a slow machine, and a leader does what is due after a second always at the same command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, Self

from pipeline.store.scripts import Scripts

START_MS: Final = 1_700_000_000_000
COMMAND_MS: Final = 10

_LINE: Final = "local seconds_, micros_ = string.match(table.remove(ARGV), '(%d+) (%d+)')\n"
_ASKED: Final = "call('TIME')"
_ANSWER: Final = "{seconds_, micros_}"


class Clock(Protocol):
    """Knows the milliseconds of now."""

    @property
    def now_ms(self) -> int: ...


def timed(text: str) -> str:
    """A script that takes the time from its last argument."""
    return _LINE + text.replace(_ASKED, _ANSWER)


def argument_of_time(now_ms: int) -> str:
    """The last argument of such a script."""
    return f"{now_ms // 1000} {now_ms % 1000 * 1000}"


def answer_of_time(now_ms: int) -> list[bytes]:
    """What the server would answer to TIME."""
    return [part.encode() for part in argument_of_time(now_ms).split()]


class TimedScripts(Scripts):
    """The production scripts, at the time of a clock."""

    def __init__(self, client: Any, clock: Clock) -> None:
        super().__init__(client)
        self._clock = clock

    def anew(self) -> Self:
        return type(self)(self.client, self._clock)

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        if not self.server:
            self.meet()  # which takes time
        return super().run(name, keys, [*args, argument_of_time(self._clock.now_ms)])

    def _text(self, name: str, server: str) -> str:
        return timed(super()._text(name, server))
