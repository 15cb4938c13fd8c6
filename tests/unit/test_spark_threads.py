"""The thread that calls Spark, when whoever waits for it is interrupted."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any, cast

import pytest

from pipeline.spark.bulk.jobs import SparkThread


class Session:
    """One of Connect, whose jobs end when they are interrupted."""

    def __init__(self) -> None:
        self.is_interrupted = threading.Event()

    def addTag(self, tag: str) -> None:  # noqa: N802
        self.tag = tag

    def interruptTag(self, tag: str) -> None:  # noqa: N802
        assert tag == self.tag
        self.is_interrupted.set()


@pytest.mark.usefixtures("loggers_as_before")
def test_what_py4j_says_of_a_call_that_is_broken_off_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    session = Session()

    def broken_off() -> None:
        signal.raise_signal(signal.SIGINT)
        assert session.is_interrupted.wait(60)
        speak = "import logging; logging.error('Exception while sending command.')"
        exec(compile(speak, "/lib/py4j/java_gateway.py", "exec"))
        logging.error("of somebody else")

    thread = SparkThread()
    thread.session = cast(Any, session)
    with pytest.raises(KeyboardInterrupt):
        thread.call(broken_off)

    assert [record.getMessage() for record in caplog.records] == ["of somebody else"]
