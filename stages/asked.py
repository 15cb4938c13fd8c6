"""Hears signals that ask a process to end, and tells its threads."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue

_log = logging.getLogger(__name__)


class Ear:
    """Calls `heard` with the number of each signal, in a thread of its own.

    A handler runs between two instructions of the main thread, which may hold the very lock that an Event's `set`
    takes. So all that handlers do is to put into a SimpleQueue, whose `put` may interrupt itself.
    """

    def __init__(self, heard: Callable[[int], None]) -> None:
        self._heard = heard
        self._numbers: SimpleQueue[int] = SimpleQueue()

    def listen(self, *numbers: signal.Signals) -> None:
        """For the main thread. What comes is kept until `start`; a signal that is ignored stays so (nohup)."""
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda came, _: self._numbers.put(came))

    def start(self) -> None:
        """Starts the thread, which lives as long as the process."""
        threading.Thread(target=self._run, name="ear", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._heard(self._numbers.get())


class Asked:
    """`stop` is set by the first signal; `hurry` by the next SIGTERM or SIGINT: it is not to take its time."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.hurry = threading.Event()
        self._ear = Ear(self._hear)

    def listen(self, *numbers: signal.Signals) -> None:
        """As `Ear.listen`."""
        self._ear.listen(*numbers)

    def start(self) -> None:
        """As `Ear.start`."""
        self._ear.start()

    def _hear(self, number: int) -> None:
        # A terminal that is closed sends SIGHUP by its shell and by the kernel, and means it once.
        if self.stop.is_set() and number != signal.SIGHUP and not self.hurry.is_set():
            _log.warning("asked again: it ends at once")
            self.hurry.set()
        self.stop.set()
