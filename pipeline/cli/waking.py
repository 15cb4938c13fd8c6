"""A thread that wakes the main thread behind each signal, until that has run the handler of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

WAKING: Final = signal.SIGUSR1
"""What it sends the main thread. Its handler is to be set while a waker is there."""

_FIRST_SECONDS: Final = 0.01
_TIMES: Final = 8
_GONE_SECONDS: Final = 1.0
_OWN: Final = 0  # the number of no signal


class Waker:
    """Woken by each of these signals that this process handles, from its making by the main thread to its end there.

    Python runs handlers in the main thread, between two instructions, and looks for them at few of these. A signal that
    comes between the last look and a call that blocks, or to another thread, is heard when that call returns: never, if
    nothing else ends it. Python writes the signal's number into a pipe at once (`signal.set_wakeup_fd`), which is read
    here; then signals are sent until `heard` was called, since a system call that is broken off makes Python look.
    """

    def __init__(self, signals: Collection[int]) -> None:
        self._signals = frozenset({*signals, _OWN})
        self._is_heard = False
        self._is_over = threading.Event()  # never touched by a handler, which may run while the lock of it is held
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="waker", daemon=True)
        self._thread.start()

    def heard(self) -> None:
        """By a handler: it runs."""
        self._is_heard = True

    def wake(self) -> None:
        """By the main thread: it is to be woken in a moment, as by a signal that was not heard."""
        self._is_heard = False
        self._write()

    def end(self) -> None:
        """By the main thread. No signal comes from here behind it."""
        signal.set_wakeup_fd(self._before)
        self._is_over.set()
        self._write()  # a process that was forked meanwhile keeps the pipe from having an end
        self._thread.join()
        self._wait_until_gone()
        os.close(self._writing)
        os.close(self._reading)

    def _wait_until_gone(self) -> None:
        """A thread that Python has joined is there for Linux a moment longer, and nothing is forked beside a thread."""
        until = time.monotonic() + _GONE_SECONDS
        thread = Path(f"/proc/self/task/{self._thread.native_id}")
        while thread.exists() and time.monotonic() < until:
            time.sleep(0.0002)

    def _write(self) -> None:
        with suppress(BlockingIOError):  # it is full: then there is something to read
            os.write(self._writing, bytes([_OWN]))

    def _run(self) -> None:
        while not self._is_over.is_set():
            if not self._signals.isdisjoint(os.read(self._reading, 4096)):
                self._wake_until_heard()

    def _wake_until_heard(self) -> None:
        # A handler may have run for two of them before the second was read here: that one is never heard of.
        for number in range(_TIMES):
            if self._is_over.wait(_FIRST_SECONDS * 2**number):
                return
            if self._is_heard:
                self._is_heard = False
                return
            signal.pthread_kill(self._main, WAKING)
