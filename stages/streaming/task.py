"""What a task of the streaming query does with its slice: the slices of a Celery worker, on Spark's executors.

All tasks of a batch share the tokens of their partitions. So several attempts at one may run at once: each commit names
the position that it starts from, and whoever comes second is refused, drops what it knows and goes on from there.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from pipeline.errors import ForeignData, StoreError
from pipeline.graph import Graph
from pipeline.plan import Plan
from pipeline.spark.bulk.definition import Definition
from pipeline.spark.garbage import settle
from pipeline.spark.streaming.slices import Place, Served, Slice
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.ownership import Assigned, Ownership
from pipeline.store.scripts import Scripts
from stages.partition import SliceEnd
from stages.serving import UNHANDLED, StuckGuard
from stages.worker import Worker

logger = logging.getLogger(__name__)

AWAY: Final = "away"
"""Redis is not there; how the partition stands is not known."""

GONE: Final = "gone"
"""The partition is another's by now, or the job does not work."""

_KEPT_DESKS: Final = 4
_LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True)
class TaskSettings:
    """Which worker tasks work for, and for how long at a time. `definition`: how its pipeline is found there."""

    redis_url: str = field(repr=False)
    job: str
    worker: str
    incarnation: str
    definition: Definition
    seconds: float

    def warm_up(self, batches: Iterator[Any]) -> Iterator[Any]:
        """For Spark's `mapInArrow`: has its process load what tasks need, before anybody waits for one."""
        with self.definition.opened(f"{self.job} {self.incarnation}"):
            yield from batches

    def serve(self, part: Slice) -> Served:
        """Works on the slice until its end, or until its time is over. Ends the process for what nobody handles."""
        with self.definition.opened(f"{self.job} {self.incarnation}") as graph:
            try:
                desk = _desk(self, graph)
            except StoreError as error:
                logger.warning("a slice could not begin: job=%s partition=%s: %s", self.job, part.name, error)
                return Served(*part.place, part.token, AWAY, str(part.reach.start))
            settle()
            return desk.serve(part, self.seconds)


class TaskOwnership(Ownership):
    """That of the member, of which a process knows only the rows that its tasks were given."""

    def __init__(self, scripts: Scripts, job: str, worker: str, incarnation: str) -> None:
        super().__init__(scripts, job, worker, incarnation)
        self.given: dict[Place, Assigned] = {}

    def table(self) -> tuple[list[Assigned], dict[str, str]]:
        return list(self.given.values()), {}


class Desk:
    """What one process keeps from task to task: the worker, with the state that its partitions have cached."""

    def __init__(
        self,
        ownership: TaskOwnership,
        plan: Plan,
        graph: Graph,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        on_unhandled: Callable[[], None] = lambda: os._exit(UNHANDLED),
    ) -> None:
        """on_unhandled: ends the process for what nobody handles, as a worker does: Spark would try it for ever."""
        self._ownership = ownership
        self._clock = clock
        self._on_unhandled = on_unhandled
        self._worker = Worker(ownership, plan, graph, clock, rng)
        self._is_closed = threading.Event()

    def watch(self) -> None:
        """From now on the process ends when user code has one record in hand for too long, as a worker's does."""
        guard = StuckGuard(self._worker)

        def look() -> None:
            while not self._is_closed.wait(_LOOK_SECONDS):
                guard.look()

        threading.Thread(target=look, name="stuck guard", daemon=True).start()

    def close(self) -> None:
        self._is_closed.set()
        self._ownership.given.clear()
        self._worker.close()

    def serve(self, part: Slice, seconds: float) -> Served:
        """Raises nothing that a ticket would not."""
        row = Assigned(*part.place, self._ownership.worker, self._ownership.incarnation, part.token)
        try:
            is_ours = self._take(row)
        except StoreError as error:
            logger.warning("a slice could not begin: job=%s partition=%s: %s", self._ownership.job, part.name, error)
            return self._served(part, AWAY)
        if not is_ours:
            return self._served(part, GONE)
        is_handled = False
        try:
            end = self._work(part, seconds)
            is_handled = True
        finally:
            if not is_handled:
                logger.critical("this process ends: partition=%s", part.name, exc_info=True)
                logging.shutdown()
                self._on_unhandled()
        return self._served(part, end.value if end is not None else GONE)

    def _take(self, row: Assigned) -> bool:
        """The worker owns the partition under this token, and what it knows of it is true. Raises StoreError."""
        place, given = (row.stage, row.partition), self._ownership.given
        try:
            # Tickets that wait are used up with this.
            stand = self._ownership.acquire(row)
            position = stand.position if stand is not None else None
        except ForeignData:
            position = None  # the look below meets it again, and fails the job
            stand = None
        owner = self._worker.owner(place)
        if owner is not None and (owner.row != row or owner.position != position):
            del given[place]
            self._worker.look()
        given[place] = row
        self._worker.look()
        owner = self._worker.owner(place)
        if owner is None:
            del given[place]
            return False
        owner.number_files(partial(self._ownership.next_file, row))
        return True

    def _work(self, part: Slice, seconds: float) -> SliceEnd | None:
        deadline, is_again = self._clock() + seconds, False
        while True:
            owner = self._worker.owner(part.place)
            if owner is None:
                return None
            owner.until = part.reach
            end = self._worker.slice(*part.place, deadline)
            if end is SliceEnd.STALE and not is_again:
                is_again = True  # overtaken: it goes on from where the partition stands by now
                continue
            is_over = self._clock() >= deadline or part.reach.is_at(owner.position)
            if end is not SliceEnd.YIELDED or is_over:
                return end

    def _served(self, part: Slice, end: str) -> Served:
        owner = self._worker.owner(part.place)
        if owner is None:
            return Served(*part.place, part.token, end, str(part.reach.start))
        told = Served(*part.place, part.token, end, str(owner.position), self._worker.seen.run, self._server)
        if end != SliceEnd.BACKOFF.value:
            return told
        return replace(told, wait_seconds=owner.wait_seconds, reason=owner.wait_reason)

    @property
    def _server(self) -> str:
        return self._ownership.scripts.server


_desks: dict[tuple[str, str, str, str], Desk] = {}
"""(address, job, worker, incarnation) -> its desk in this process. Oldest first."""


def _desk(settings: TaskSettings, graph: Graph) -> Desk:
    whose = (settings.redis_url, settings.job, settings.worker, settings.incarnation)
    desk = _desks.get(whose)
    if desk is None:
        ownership = TaskOwnership(Scripts(connect(whose[0])), *whose[1:])
        plan = JobStore(ownership.scripts).read(settings.job).plan
        while len(_desks) >= _KEPT_DESKS:
            _desks.pop(next(iter(_desks))).close()
        desk = _desks[whose] = Desk(ownership, plan, graph)
        desk.watch()
    return desk
