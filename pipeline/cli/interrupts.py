"""Signals that ask the command to end: counted, and raised only where that leaves nothing behind."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

_ASKING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While open, Ctrl-C counts one and SIGTERM or SIGHUP count two: the one asks to drain, two mean to cancel.

    Belongs to the main thread. A signal that was ignored when the program started stays ignored (nohup).
    """

    def __init__(self) -> None:
        self.count = 0
        self._raise_above = math.inf
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in _ASKING:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def check(self, above: int = 0) -> None:
        """Raises KeyboardInterrupt if the count is above this."""
        if self.count > above:
            raise KeyboardInterrupt

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """In the body signals are counted only, whatever holds around it."""
        outer, self._raise_above = self._raise_above, math.inf
        try:
            yield
        finally:
            self._raise_above = outer

    @contextmanager
    def immediate(self, above: int = 0) -> Iterator[None]:
        """In the body, KeyboardInterrupt is raised as soon as the count is above this, at whatever line."""
        self.check(above)
        outer, self._raise_above = self._raise_above, above
        try:
            yield
        finally:
            self._raise_above = outer

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1 if number == signal.SIGINT else 2
        if self.count > self._raise_above:
            raise KeyboardInterrupt
