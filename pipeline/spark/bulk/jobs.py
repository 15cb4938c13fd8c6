"""Runs what calls Spark in a thread of its own, so that a Ctrl-C breaks off no call half-way, and can end its jobs."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark.sql import SparkSession

from pipeline.spark.session import is_connect, make_active

T = TypeVar("T")

_LOOK_SECONDS: Final = 0.2
_CANCEL_SECONDS: Final = 15.0
"""What a thread gets to notice that its jobs were ended. It is a daemon: it never keeps the program."""


class SparkThread:
    """Calls one function at a time. `session` is told once there is one: then its jobs can be ended."""

    def __init__(self) -> None:
        self.session: SparkSession | None = None
        self._tag = f"celeriac-{secrets.token_hex(6)}"

    def call(self, function: Callable[[], T]) -> T:
        """The answer of the function, or what it raised. When this is interrupted, Spark's jobs of it are ended."""
        answer: list[T] = []
        errors: list[BaseException] = []
        is_over = threading.Event()

        def run() -> None:
            try:
                if self.session is not None:
                    make_active(self.session)
                    _tag_jobs(self.session, self._tag)
                answer.append(function())
            except BaseException as error:  # it is raised in the thread that waits
                errors.append(error)
            finally:
                is_over.set()

        try:
            threading.Thread(target=run, name="spark", daemon=True).start()
            while not is_over.wait(_LOOK_SECONDS):
                pass
        except BaseException:
            self._end(is_over)
            raise
        if errors:
            raise errors[0]
        return answer[0]

    def _end(self, is_over: threading.Event) -> None:
        # A call that does not end in time is broken off with the JVM, and py4j would print that: some as the root.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_is_not_of_py4j)
        session = self.session
        if session is not None:
            # On another thread: this one's connection to the JVM may be in the middle of an answer.
            canceller = threading.Thread(target=lambda: self._interrupt(session), name="cancel", daemon=True)
            canceller.start()
            canceller.join(_CANCEL_SECONDS)
        is_over.wait(_CANCEL_SECONDS)

    def _interrupt(self, session: Any) -> None:
        with suppress(Exception):  # whatever Spark says to that: the run is over
            _end_jobs(session, self._tag)


def _tag_jobs(session: Any, tag: str) -> None:
    """The jobs that this thread begins from now on."""
    if is_connect(session):
        session.addTag(tag)
    else:
        session.sparkContext.addJobTag(tag)


def _end_jobs(session: Any, tag: str) -> None:
    """Those with this tag, from any thread: `interruptTag` of a classic session knows those of its own thread only."""
    if is_connect(session):
        session.interruptTag(tag)
    else:
        session.sparkContext.cancelJobsWithTag(tag)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"
