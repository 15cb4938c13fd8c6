"""DataFrame operators in a worker: a batch becomes a frame, the function is applied, and its rows come back.

The session that they share is made in the process that uses it, by a thread of its own, since that takes seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Final, TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.errors import CeleriacError, EnvironmentFault, FrameError
from pipeline.graph import Node, Transform
from pipeline.kernel.contract import Runner
from pipeline.kernel.faults import OperatorError, is_of_user_code
from pipeline.records import Batch
from pipeline.spark.bulk.connecting import open_session
from pipeline.spark.bulk.faults import words_of
from pipeline.spark.frames import FrameColumns, applied, refuse_times, rows_of, words_of_any
from pipeline.spark.session import make_active

logger = logging.getLogger(__name__)

MASTER: Final = "local[1]"
"""A worker is one process for one core; more workers are for more cores."""

Opener: TypeAlias = Callable[[], SparkSession]

_AGAIN_SECONDS: Final = 5.0
"""Between two attempts to reach a Connect server."""


class SessionLost(Exception):
    """Raised when Spark has ended under a batch. Nothing handles it, so that the process ends, too.

    That counts as a death of the worker: a record that brings Spark down again and again becomes a dead letter.
    """


class Transforms:
    """The DataFrame operators of one process, and their session. `runners` are for one thread, and need `is_ready`."""

    def __init__(self, nodes: Iterable[Node], remote: str = "", opener: Opener | None = None) -> None:
        """`remote`: the address of a Connect server; without one Spark runs in this process' own JVM."""
        self._remote = remote
        self._open = opener or (lambda: open_session(None if remote else MASTER, remote or None))
        self._session: SparkSession | None = None
        self._fault: CeleriacError | None = None
        self._thread: threading.Thread | None = None
        self._next_try = 0.0
        self.runners: Mapping[str, Runner] = {
            node.name: _FrameRunner(node, self._there) for node in nodes if isinstance(node, Transform)
        }

    @property
    def waits_for(self) -> str:
        """Why it is not ready, in words."""
        return "Spark starts" if self._fault is None else str(self._fault)

    def is_ready(self) -> bool:
        """Whether the session is there; the first call has it made. A Connect server that is away is tried again.

        Raises PipelineError or EnvironmentFault, in the thread that asks, when there can be none.
        """
        if self._session is not None:
            return True
        if self._thread is None or not self._thread.is_alive():
            if self._fault is not None and not (self._remote and isinstance(self._fault, EnvironmentFault)):
                raise self._fault
            if monotonic() >= self._next_try:
                self._next_try = monotonic() + _AGAIN_SECONDS
                self._thread = threading.Thread(target=self._begin, name="spark session", daemon=True)
                self._thread.start()
        return False

    def _begin(self) -> None:
        started = monotonic()
        logger.info("Spark starts for the operators %s", ", ".join(self.runners))
        try:
            session = self._open()
            session.range(1).toArrow()  # the first job of a session takes a second more than any other
        except CeleriacError as error:
            logger.warning("there is no Spark session: %s", error)
            self._fault = error
            return
        except (PySparkException, Py4JError, OSError) as error:
            self._fault = EnvironmentFault(f"Spark does not work: {words_of(error)}")
            logger.warning("%s", self._fault)
            return
        logger.info("Spark has started in %.1f s", monotonic() - started)
        self._session = session

    def _there(self) -> SparkSession:
        assert self._session is not None  # whoever runs a stage has asked
        return self._session


class _FrameRunner:
    """One operator."""

    def __init__(self, node: Transform, session: Callable[[], SparkSession]) -> None:
        self._node = node
        self._session = session
        self._columns = FrameColumns(node.columns)

    def __call__(self, batch: Batch) -> Batch:
        """Raises EncodingError and OperatorError for a record, PipelineError for a stream that it cannot serve."""
        refuse_times(self._node, batch)
        session, most = self._session(), self._node.batch
        try:
            make_active(session)
        except (Py4JError, OSError) as error:
            raise self._lost(error) from error
        rows: list[Any] = []
        for start in range(0, len(batch), most):
            rows += self._rows(session, batch.values[start : start + most])
        return Batch(rows)

    def _rows(self, session: SparkSession, values: list[Any]) -> list[dict[str, Any]]:
        table = self._columns.table(values)
        try:
            frame = session.createDataFrame(table, self._columns.schema)
            return rows_of(applied(self._node, frame).toArrow())
        except BaseException as error:
            if not is_of_user_code(error):
                raise
            if not _works(session):
                raise self._lost(error) from error
            raise OperatorError(self._node.name, _told(error)) from error

    def _lost(self, error: BaseException) -> SessionLost:
        return SessionLost(f"Spark has ended: operator={self._node.name}: {words_of_any(error)}")


def _told(error: BaseException) -> BaseException:
    """Spark's errors show a whole plan, or the stack of the JVM: what a person can use of them."""
    if isinstance(error, PySparkException | Py4JError):
        return FrameError(words_of_any(error)).with_traceback(error.__traceback__)
    return error


def _works(session: SparkSession) -> bool:
    try:
        session.range(1).count()
    except (PySparkException, Py4JError, OSError, RuntimeError):
        return False
    return True
