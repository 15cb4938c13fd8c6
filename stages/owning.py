"""The bootstep that ties ownership to Celery: it follows the assignment table with queues, and runs the heartbeat."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable
from time import monotonic
from typing import Any, ClassVar, Final

from celery import bootsteps, signals

from pipeline.embedded.process import settle
from pipeline.errors import StoreError
from pipeline.store import keys
from stages.bell import Bell
from stages.busy import Shares
from stages.pulse import Pulse
from stages.serving import StuckGuard, serve
from stages.worker import Place, Worker

logger = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS: Final = 0.5

_PAUSE_MARGIN_SECONDS: Final = 0.005
"""The hub's clock is not the worker's: who looks too early does not look again."""

_GC_THRESHOLDS: Final = (50_000, 20, 50)
"""Batches are many objects without cycles: the collector's usual thresholds make it walk through them all the time."""


class Owning(bootsteps.StartStopStep):
    """Takes and leaves queues as the table says, and works once on each partition that is new.

    Celery starts it anew after each reconnect of its own connection; the heartbeat lives as long as the process.
    """

    requires: ClassVar = {"celery.worker.consumer.tasks:Tasks"}

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._worker: Worker = parent.app.celeriac_worker
        self._told: dict[str, Any] = parent.app.celeriac_told
        self._node: str = parent.app.celeriac_node
        self._shares = Shares()
        self._bell = Bell()
        self._code: str = parent.app.celeriac_code
        self._consumed: set[Place] = set()
        self._pulse: Pulse | None = None
        self._is_consuming = False
        self._is_ending = False
        self._wake: Callable[[], None] = _nothing
        signals.worker_shutting_down.connect(self._hear_end, weak=False)

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        """Called at each connect, behind `start`, on the hub's thread."""
        self._is_consuming = True
        self._bell.hang(hub, lambda: self._look(parent, hub))
        self._wake = self._bell.ring
        self._worker.on_pause = lambda seconds: hub.call_later(seconds + _PAUSE_MARGIN_SECONDS, self._look, parent, hub)
        for seconds in self._worker.pauses():
            self._worker.on_pause(seconds)
        if self._pulse is None:
            settle()
            gc.set_threshold(*_GC_THRESHOLDS)
            ownership = parent.app.celeriac_pulse_ownership
            guard = StuckGuard(self._worker)
            self._pulse = Pulse(
                ownership, self._report, lambda: self._wake(), _end_process, guard.look, self._worker.compare
            )
            self._pulse.start()
        self._wake()

    def stop(self, parent: Any) -> None:
        """Celery's connection is lost, or the worker ends. Waits for Redis in the first case."""
        self._is_consuming = False
        self._wake = _nothing
        parent.app.celeriac_await_redis()

    def shutdown(self, parent: Any) -> None:
        if self._pulse is not None:
            self._pulse.stop()
            self._worker.is_replaced = self._pulse.is_replaced
        self._worker.close()

    def _report(self) -> dict[str, Any]:
        now = monotonic()
        told = {"consuming": self._is_consuming, "pid": os.getpid(), **self._told}
        told |= {"node": self._node, "code": self._code}
        self._shares.note(now, self._worker.busy.places(now))
        held = self._worker.holdings()
        parts = {f"{s}.{p}": [*held[s, p], self._shares.of((s, p))] for s, p in held}
        load = {"busy": self._worker.busy.report(now), "share": self._shares.total(), "parts": parts}
        return {**self._worker.hand.report(now), **load, **told}

    def _hear_end(self, **_: Any) -> None:
        """In a signal handler of Celery's: the hub, if it sleeps, is to see at once what that has set."""
        self._is_ending = True
        self._bell.ring()

    def _look(self, consumer: Any, hub: Any) -> None:
        if self._is_ending or not self._is_consuming:
            return  # it was asked for before the connection was lost; the next one begins with a look
        try:
            fresh = self._worker.look()
        except StoreError as error:
            logger.warning("the assignment cannot be read, it is tried again: %s", error)
            hub.call_later(_LOOK_AGAIN_SECONDS, self._look, consumer, hub)
            return
        job, owned = self._worker.ownership.job, set(self._worker.places)
        for place in sorted(self._consumed - owned):
            consumer.cancel_task_queue(keys.queue_name(job, *place))
        for place in sorted(owned - self._consumed):
            consumer.add_task_queue(keys.queue_name(job, *place))
        self._consumed = owned
        for place in fresh:
            serve(self._worker, *place)


def _nothing() -> None:
    """No connection: there is nobody to wake."""


def _end_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
