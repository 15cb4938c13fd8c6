"""`python -m stages.streaming.main`: a worker process that is the driver of a Spark streaming query.

It is started, watched and ended as any other worker. What it serves comes by the environment (see WorkerSettings), and
besides where Spark runs. When the query fails the process ends: then this counts as the death of a worker, so that a
record that kills Spark's processes is given up in the end.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.bursts import is_burst_pool
from pipeline.embedded.folders import OwnFolder
from pipeline.errors import CeleriacError, EnvironmentFault, PipelineError, StoreError
from pipeline.needs import IN_A_STREAM, refuse_frames
from pipeline.plan import fingerprint
from pipeline.programs.checking import find_programs
from pipeline.spark.bulk.definition import Definition, define
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.ownership import Ownership
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.versions import check_code
from stages.app import WorkerSettings
from stages.asked import Ear
from stages.pulse import Pulse
from stages.serving import UNHANDLED
from stages.streaming.member import StreamMember
from stages.streaming.starting import INTERVAL_VARIABLE, MASTER_VARIABLE
from stages.streaming.task import TaskSettings
from stages.supervision import REPLACED

TASK_SECONDS: Final = 0.8
"""A task ends its slice after this: an owner that is asked for a partition has a second to give it away."""

BURST_SECONDS: Final = 3.0
"""The same in a burst, whose partitions nobody waits for: a batch costs Spark less beside that."""

SLICE_RECORDS: Final = 200_000
"""The most of one slice; its time is over before, unless records are very cheap."""

_LOOK_SECONDS: Final = 0.25
_NOT_STARTED: Final = 3

logger = logging.getLogger("stages.streaming.main")  # its own name is __main__ when it runs


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """master: of Spark, nothing for the cores of this host. interval_seconds: between the beginnings of batches."""

    worker: WorkerSettings
    master: str
    interval_seconds: float

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> StreamSettings:
        """Raises PipelineError for what is missing or wrong."""
        interval = environment.get(INTERVAL_VARIABLE) or "0"
        try:
            seconds = float(interval)
        except ValueError as error:
            raise PipelineError(f"{INTERVAL_VARIABLE} is no number of seconds: {interval!r}") from error
        return cls(WorkerSettings.from_environment(dict(environment)), environment.get(MASTER_VARIABLE, ""), seconds)


class StreamWorker:
    """The process: heartbeat, table and query. Belongs to the main thread."""

    def __init__(self, settings: StreamSettings, folder: Path) -> None:
        """Loads and checks the pipeline. Raises PipelineError, EnvironmentFault, StoreError."""
        self._settings = settings
        self._folder = folder
        self._wake = threading.Event()
        self._stop = threading.Event()
        worker = settings.worker
        self.master = settings.master
        definition, code = _checked(worker)
        self._beating = self._ownership()
        told = {
            "pid": os.getpid(),
            "pool": worker.pool,
            "sized": False,
            "node": worker.node,
            "code": code,
            "engine": "spark",
        }
        self.member = StreamMember(self._ownership(), told)
        names = (worker.redis_url, worker.job, worker.worker, worker.incarnation)
        self._is_burst = is_burst_pool(worker.pool)
        self._task = TaskSettings(*names, definition, BURST_SECONDS if self._is_burst else TASK_SECONDS)
        self._is_consuming = False
        self._compared = ""

    def stop(self) -> None:
        """Any thread may ask for it."""
        self._stop.set()
        self._wake.set()

    def run(self, session: Any) -> int:
        """Works until `stop`, or until the job is gone; the exit code."""
        from pipeline.spark.streaming.query import InboxQuery, QuerySettings, warm_up

        worker = self._settings.worker
        settings = QuerySettings(
            worker.job,
            worker.worker,
            worker.incarnation,
            worker.redis_url,
            self._folder,
            SLICE_RECORDS,
            self._settings.interval_seconds,
            self._cuts() if self._is_burst else {},
            self._is_burst,
        )
        query = InboxQuery(session, settings, self._task.serve, self.member)
        speaking = self._ownership()
        pulse = Pulse(self._beating, self._report, self._wake.set, self.stop, _nothing, self._compare)
        begun = threading.Event()
        self.member.on_batch_end = begun.set
        if self._is_burst:
            warm_up(session, self._task.warm_up)
        query.start()
        try:
            while self._is_burst and query.is_active and not self._stop.is_set() and not begun.wait(_LOOK_SECONDS):
                pass
            self.member.on_batch_end = lambda: self._say(speaking)
            self._is_consuming = True
            pulse.start()
            code = self._follow(query)
            return REPLACED if pulse.is_replaced else code
        finally:
            query.stop()
            if self._is_consuming and self._stop.is_set():
                pulse.stop()

    def _cuts(self) -> dict[str, str]:
        """Those of the burst that its node has, if that still has one. Raises StoreError."""
        worker = self._settings.worker
        operation = JobStore(self._beating.scripts).facts(worker.job).operation
        return operation.about.cuts if operation is not None and operation.about.node == worker.node else {}

    def _follow(self, query: Any) -> int:
        while not self._stop.is_set():
            if not query.is_active:
                logger.critical("the query has ended, and so does this worker: %s", query.fault())
                return UNHANDLED
            try:
                self.member.look()
            except StoreError as error:
                logger.warning("the assignment cannot be read, it is tried again: %s", error)
            self._wake.wait(self.member.pause_seconds(_LOOK_SECONDS))
            self._wake.clear()
        return 0

    def _report(self) -> dict[str, Any]:
        return {**self.member.report(self._beating), "consuming": self._is_consuming}

    def _say(self, ownership: Ownership) -> None:
        """A heartbeat of its own behind a batch: what is to rest must be known before the next one is planned."""
        if not self._compared:
            return
        try:
            report = {**self.member.report(ownership), "consuming": True, "stopping": self._stop.is_set()}
            ownership.heartbeat(json.dumps({**report, "server": self._compared}))
        except StoreError as error:
            logger.warning("no heartbeat behind a batch: %s", error)
        self._wake.set()

    def _compare(self, ownership: Ownership) -> None:
        self.member.compare(ownership)
        self._compared = ownership.scripts.server

    def _ownership(self) -> Ownership:
        worker = self._settings.worker
        return Ownership(Scripts(connect(worker.redis_url)), worker.job, worker.worker, worker.incarnation)


def _nothing() -> None:
    """Records that hold up their task are seen where that runs."""


def _checked(settings: WorkerSettings) -> tuple[Definition, str]:
    """How tasks get the pipeline, and its code version. Raises PipelineError, EnvironmentFault, StoreError."""
    scripts = Scripts(connect(settings.redis_url))
    plan = JobStore(scripts).read(settings.job).plan
    graph, definition = define(settings.pipeline)
    if fingerprint(graph) != plan.fingerprint:
        raise PipelineError(
            f"{settings.pipeline} is not the pipeline that job {settings.job!r} was started with",
            hint="run it under a new job id",
        )
    code = check_code(VersionStore(scripts).rollout(settings.job), settings.worker, settings.pipeline)
    refuse_frames(graph.nodes, IN_A_STREAM)
    find_programs(graph.nodes)
    return definition, code


def open_spark(master: str) -> Any:
    """Takes some seconds. Raises PipelineError, EnvironmentFault."""
    try:
        from pipeline.spark.bulk.connecting import open_session
    except ModuleNotFoundError as error:
        raise EnvironmentFault(f"Spark needs {error.name}", hint="pip install 'celeriac[spark]'") from error
    return open_session(master or None)


def main() -> int:
    """Runs until SIGTERM. 3 when it cannot start, 70 when the query failed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    with ExitStack() as stack:
        folder = stack.enter_context(OwnFolder.make("celeriac-stream-")).path
        try:
            worker = StreamWorker(StreamSettings.from_environment(os.environ), folder)
            ear = Ear(lambda _: worker.stop())
            ear.listen(signal.SIGTERM, signal.SIGINT)
            ear.start()
            return worker.run(open_spark(worker.master))
        except CeleriacError as error:
            print(f"error: {error}\nhint: {error.hint}" if error.hint else f"error: {error}", file=sys.stderr)
            return _NOT_STARTED


if __name__ == "__main__":
    sys.exit(main())
