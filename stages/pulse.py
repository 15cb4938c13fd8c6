"""The worker's heartbeat and its ear for control: a thread with its own connection, alive while a slice computes."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from pipeline.errors import StoreError, UnknownJob
from pipeline.faultlog import FaultLog
from pipeline.store.ownership import Ownership

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 0.2
_PAUSE_AFTER_ERROR_SECONDS: Final = 0.5


class Pulse(threading.Thread):
    """Beats every INTERVAL_SECONDS, and calls `on_control` as soon as the control stream has grown.

    `on_end` is called once when this process must end: its job is gone, or a newer incarnation has its name.
    `guard` is called at each beat, also while Redis is away. `compare` is called once for each run of the server,
    before the first heartbeat there, which says so: the job goes on when all have compared.
    """

    def __init__(
        self,
        ownership: Ownership,
        report: Callable[[], dict[str, Any]],
        on_control: Callable[[], None],
        on_end: Callable[[], None],
        guard: Callable[[], None],
        compare: Callable[[Ownership], None],
    ) -> None:
        super().__init__(name="pulse", daemon=True)
        self._ownership = ownership
        self._report = report
        self._on_control = on_control
        self._on_end = on_end
        self._guard = guard
        self._compare = compare
        self._server = ""
        self._stopping = threading.Event()
        self._faults = FaultLog(logger, "no heartbeat")
        self.is_replaced = False
        """Whether a newer incarnation has its name."""

    def run(self) -> None:
        last = "0-0"
        while not self._stopping.is_set():
            self._guard()
            try:
                self._meet()
                if not self._beat():
                    self.is_replaced = True
                    self._on_end()
                    return
                self._faults.over()
                last = self._listen(last)
            except UnknownJob as error:
                logger.info("this worker ends: %s", error)
                self._on_end()
                return
            except StoreError as error:
                self._faults.met(error)
                self._stopping.wait(_PAUSE_AFTER_ERROR_SECONDS)

    def stop(self) -> None:
        """Says goodbye, so that the leader need not wait, and ends the thread. Blocks for a moment."""
        self._stopping.set()
        self.join(timeout=5.0)
        if self.is_replaced:
            return
        try:
            self._beat(stopping=True)
        except StoreError as error:
            logger.info("the goodbye was not heard: %s", error)

    def _meet(self) -> None:
        server = self._ownership.scripts.server or self._ownership.scripts.meet()
        if server != self._server:
            self._compare(self._ownership)
            self._server = server

    def _beat(self, *, stopping: bool = False) -> bool:
        pulse = self._ownership.heartbeat(json.dumps({**self._report(), "stopping": stopping, "server": self._server}))
        if pulse is None:
            logger.warning(
                "a newer incarnation of worker %s runs: this one ends (if another process was started under its name, "
                "give each a CELERIAC_WORKER of its own)",
                self._ownership.worker,
            )
        return pulse is not None

    def _listen(self, last: str) -> str:
        """Waits for control for one interval."""
        until = monotonic() + INTERVAL_SECONDS
        while (left := until - monotonic()) > 0 and not self._stopping.is_set():
            news = self._ownership.wait_for_control(last, max(1, int(left * 1000)))
            if news != last:
                last = news
                self._on_control()
        return last
