"""Runs what calls Spark in a thread of its own, so that a Ctrl-C breaks off no call half-way, and can end its jobs."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from pyspark.sql import SparkSession

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

        def run() -> None:
            try:
                if self.session is not None:
                    self.session.addTag(self._tag)
                answer.append(function())
            except BaseException as error:  # it is raised in the thread that waits
                errors.append(error)

        thread = threading.Thread(target=run, name="spark", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_LOOK_SECONDS)
        except BaseException:
            self._end(thread)
            raise
        if errors:
            raise errors[0]
        return answer[0]

    def _end(self, thread: threading.Thread) -> None:
        # A call that does not end in time is broken off with the JVM, and py4j would print that.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        session = self.session
        if session is not None:
            # On another thread: this one's connection to the JVM may be in the middle of an answer.
            canceller = threading.Thread(target=lambda: self._interrupt(session), name="cancel", daemon=True)
            canceller.start()
            canceller.join(_CANCEL_SECONDS)
        thread.join(_CANCEL_SECONDS)

    def _interrupt(self, session: Any) -> None:
        with suppress(Exception):  # whatever Spark says to that: the run is over
            session.interruptTag(self._tag)
