"""Signals that ask the command to end: counted, and raised only where that leaves nothing behind."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

from pipeline.cli.waking import WAKING, Waker

_ASKING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        self._waker: Waker | None = None
        self._is_dropped = False

    def __enter__(self) -> Interrupts:
        for number in _ASKING:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._on_signal)
        self._before[WAKING] = signal.signal(WAKING, self._on_waking)
        self._report_before, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.unraisablehook = self._report_before
        self._raise_from(math.inf)
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
        with self._raising(math.inf):
            yield

    @contextmanager
    def immediate(self, above: int = 0) -> Iterator[None]:
        """In the body, KeyboardInterrupt is raised as soon as the count is above this, at whatever line."""
        self.check(above)
        with self._raising(above):
            yield

    @contextmanager
    def _raising(self, above: float) -> Iterator[None]:
        outer = self._raise_above
        try:
            self._raise_from(above)
            yield
        except RuntimeError as error:
            # A lock of Python's own that was broken off half-way through a wait cannot be released.
            if above < math.inf and isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise
        finally:
            if outer == math.inf:
                self._raise_above = outer  # here, as the next call may be interrupted before it begins
            self._raise_from(outer)

    def _raise_from(self, above: float) -> None:
        """Raises above this count from now on. There is a waker while anything is raised, and else no thread."""
        if above < math.inf:
            self._waker = self._waker or Waker(_ASKING)
            self._raise_above = above
        else:
            self._raise_above = above
            waker, self._waker = self._waker, None
            if waker is not None:
                waker.end()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1 if number == signal.SIGINT else 2
        self._raise_if_asked()

    def _on_waking(self, number: int, frame: FrameType | None) -> None:
        if self._is_dropped:
            self._is_dropped = False
            self._raise_if_asked()

    def _raise_if_asked(self) -> None:
        if self._waker is not None:
            self._waker.heard()
        if self.count > self._raise_above:
            raise KeyboardInterrupt

    def _on_unraisable(self, report: sys.UnraisableHookArgs, /) -> None:
        """Python drops what is raised in a finalizer. A Ctrl-C that came just then must be raised once more, later."""
        if isinstance(report.exc_value, KeyboardInterrupt):
            self._is_dropped = True
            if self._waker is not None:
                self._waker.wake()
        else:
            self._report_before(report)
