"""One streaming query over the inboxes of a job. Each micro-batch is one task for each slice; tasks commit to Redis.

It knows neither the kernel nor the protocol: what a task does with its slice is handed in, and so is whoever watches.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pipeline.errors import EnvironmentFault
from pipeline.positions import Position, Reach
from pipeline.spark.bulk.faults import words_of
from pipeline.spark.session import make_active
from pipeline.spark.streaming.slices import Served, Slice, slices_in
from pipeline.spark.streaming.source import FORMAT, Inboxes

_GRACE_SECONDS: Final = 1.5
_FAULTS: Final = (PySparkException, Py4JError)
"""What Spark refuses, and what is left of it when its JVM has ended."""

_SERVED: Final = (
    "stage int, partition int, token string, end string, position string, run string, server string, wait double,"
    " reason string"
)
_SCHEMA: Final = pa.schema(
    [
        ("stage", pa.int32()),
        ("partition", pa.int32()),
        ("token", pa.string()),
        ("end", pa.string()),
        ("position", pa.string()),
        ("run", pa.string()),
        ("server", pa.string()),
        ("wait", pa.float64()),
        ("reason", pa.string()),
    ]
)


Serve: TypeAlias = Callable[[Slice], Served]
"""Works on a slice, in a task. Carried to the executors, so it must be importable there."""


class Watch(Protocol):
    """Whoever answers for the query. Called by a thread of Spark's, for one batch after the other."""

    def begin(self, slices: list[Slice]) -> None:
        """A batch of these is about to run."""

    def end(self, served: list[Served]) -> None:
        """It has run; the next one is planned when this returns."""


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Whose query it is, and how it is paced.

    folder: of this host, for Spark's log of batches and for the address of Redis; only this user can read that.
    records: the most of one slice. interval_seconds: a batch begins no sooner than this after the one before; None:
    only what is there when the query starts is taken, and then it ends. cuts: partition, as `stage.partition` -> the
    position from which on it is left alone. begins_empty: the first batch takes nothing.
    """

    job: str
    worker: str
    incarnation: str
    redis_url: str = field(repr=False)
    folder: Path
    records: int
    interval_seconds: float | None = 0.0
    cuts: Mapping[str, str] = field(default_factory=dict)
    begins_empty: bool = False

    @property
    def checkpoint(self) -> Path:
        return self.folder.resolve() / "checkpoint"

    def keep_address(self) -> Path:
        """The file that holds the address of Redis."""
        path = self.folder.resolve() / "address"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(self.redis_url)
        return path


@dataclass(frozen=True)
class SliceTask:
    """What Spark carries to the executors."""

    serve: Serve

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _batch([self.serve(_slice(row)) for row in batch.to_pylist()])


class InboxQuery:
    """Runs from `start` to `stop`. Uses a classic session: it must call back into this process."""

    def __init__(self, session: Any, settings: QuerySettings, serve: Serve, watch: Watch) -> None:
        self._session = session
        self._settings = settings
        self._task = SliceTask(serve)
        self._watch = watch
        self._query: Any = None
        # Held while a batch runs, so that `stop` waits for it and none begins behind that.
        self._running = threading.Lock()
        self._is_stopping = False

    def start(self) -> None:
        """Takes some seconds. Raises EnvironmentFault when Spark refuses."""
        settings = self._settings
        make_active(self._session)
        self._session.dataSource.register(Inboxes)
        options = {"job": settings.job, "worker": settings.worker, "incarnation": settings.incarnation}
        options |= {"records": str(settings.records), "address": str(settings.keep_address())}
        options |= {"cuts": json.dumps(dict(settings.cuts))}
        options |= {"begins_empty": "yes"} if settings.begins_empty else {}
        frame = self._session.readStream.format(FORMAT).options(**options).load()
        writer = frame.writeStream.foreachBatch(self._run_batch).option(
            "checkpointLocation", settings.checkpoint.as_uri()
        )
        if settings.interval_seconds is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{int(settings.interval_seconds * 1000)} milliseconds")
        try:
            self._query = writer.start()
        except _FAULTS as error:
            raise EnvironmentFault(f"Spark starts no streaming query: {words_of(error)}") from error

    @property
    def is_active(self) -> bool:
        return bool(self._query is not None and self._query.isActive)

    def fault(self) -> str:
        """Why the query has ended by itself, in words; nothing when it has come to its end, or Spark does not say."""
        error = self._query.exception()
        return words_of(error) if error is not None else ""

    def stop(self) -> None:
        """Ends it behind the batch that runs. Tasks that take longer are broken off: they may yet end their step."""
        if self._query is None:
            return
        is_free = self._running.acquire(timeout=_GRACE_SECONDS)
        self._is_stopping = True
        with suppress(*_FAULTS):  # Spark may have ended before
            self._query.stop()
        if is_free:
            self._running.release()

    def _run_batch(self, frame: Any, batch: int) -> None:
        with self._running:
            if not self._is_stopping:
                self._run(frame, batch)

    def _run(self, frame: Any, batch: int) -> None:
        slices = slices_in(planned_in(self._settings.checkpoint, batch))
        self._watch.begin(slices)
        rows = frame.mapInArrow(self._task.run, _SERVED).collect()
        self._watch.end([Served(*row) for row in rows])


def warm_up(session: Any, load: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
    """Has Spark start the processes of its tasks, and each of them `load`: partitions need not wait for that then.

    Raises EnvironmentFault when Spark cannot.
    """
    make_active(session)
    cores = session.sparkContext.defaultParallelism
    try:
        session.range(0, cores, 1, cores).mapInArrow(load, "id long").collect()
    except _FAULTS as error:
        raise EnvironmentFault(f"Spark runs no task: {words_of(error)}") from error


def planned_in(checkpoint: Path, batch: int) -> dict[str, Any]:
    """The offset of our source that Spark has logged for a batch before it runs: the last line of the file."""
    lines = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
    found = json.loads(lines[-1])
    return dict(found)


def _slice(row: dict[str, Any]) -> Slice:
    reach = Reach(Position.parse(row["start"]), Position.parse(row["stop"]), row["records"])
    return Slice(row["stage"], row["partition"], row["token"], reach)


def _batch(served: Sequence[Served]) -> pa.RecordBatch:
    arrays = [
        pa.array([getattr(row, each.name) for row in served], kind.type)
        for each, kind in zip(fields(Served), _SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
