"""Gives a process a wall clock that is wrong.

CELERIAC_TEST_CLOCKS: `role=seconds` or `role=jumps:seconds` for w0, w1, leader, source and node, with commas between.
A clock that jumps is ahead for a second and behind for the next. The monotonic clock stays right, as it does where the
time of a host is set.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any

_NOW, _NOW_NS, _RIGHT = time.time, time.time_ns, datetime.datetime
"""Those that are right, also in a process that was forked from one with a wrong clock of its own."""


def error_of(kind: str) -> Callable[[], float]:
    """By how many seconds the clock is wrong now."""
    jumps, _, seconds = kind.rpartition(":")
    amount, right = float(seconds), time.monotonic
    if jumps:
        return lambda: amount if int(right()) % 2 else -amount
    return lambda: amount


class _LooksLikeDatetime(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _RIGHT)


def spoil(error: Callable[[], float]) -> None:
    time.time = lambda: _NOW() + error()
    time.time_ns = lambda: _NOW_NS() + int(error() * 1e9)

    class Wrong(_RIGHT, metaclass=_LooksLikeDatetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return _RIGHT.now(tz) + datetime.timedelta(seconds=error())

        @classmethod
        def utcnow(cls) -> Any:
            return _RIGHT.utcnow() + datetime.timedelta(seconds=error())

    datetime.datetime = Wrong  # type: ignore[misc]


def install(role: str, told: str) -> None:
    kinds = dict(item.split("=") for item in told.split(",") if item)
    if role in kinds:
        spoil(error_of(kinds[role]))
    else:
        time.time, time.time_ns, datetime.datetime = _NOW, _NOW_NS, _RIGHT  # type: ignore[misc]
