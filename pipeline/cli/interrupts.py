"""Signals that ask the command to end: counted, and raised only where that leaves nothing behind."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

_ASKING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_AGAIN_SECONDS: Final = 0.01


class Interrupts:
    """While open, Ctrl-C counts one and SIGTERM or SIGHUP count two: the one asks to drain, two mean to cancel.

    Belongs to the main thread, and has SIGUSR1 for itself. A signal that was ignored when the program started stays
    ignored (nohup).
    """

    def __init__(self) -> None:
        self.count = 0
        self._raise_above = math.inf
        self._before: dict[int, Any] = {}
        self._report_before = sys.unraisablehook
        self._again: threading.Timer | None = None

    def __enter__(self) -> Interrupts:
        for number in _ASKING:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._on_signal)
        self._before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._raise_again)
        self._report_before, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.unraisablehook = self._report_before
        if self._again is not None:
            self._again.join()
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

    def _on_unraisable(self, report: sys.UnraisableHookArgs, /) -> None:
        """Python drops what is raised in a finalizer. A Ctrl-C that came just then must be raised once more, later."""
        if isinstance(report.exc_value, KeyboardInterrupt):
            if self._again is None or not self._again.is_alive():
                self._again = threading.Timer(_AGAIN_SECONDS, _wake_main_thread)
                self._again.start()
        else:
            self._report_before(report)

    def _raise_again(self, number: int, frame: FrameType | None) -> None:
        if self.count > self._raise_above:
            raise KeyboardInterrupt


def _wake_main_thread() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
