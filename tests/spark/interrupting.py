"""A call of Spark that is interrupted while a task of it waits for ever."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.spark.bulk import jobs
from tests.e2e.chaos import wait_until


def check_that_an_interrupt_ends_the_job(session: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_CANCEL_SECONDS", 60.0)
    sign = str(folder / "here")

    def waits(batches: Iterator[Any]) -> Iterator[Any]:
        Path(sign).touch()
        time.sleep(600)
        yield from batches

    def interrupt() -> None:
        wait_until(Path(sign).exists, "a task waits", 120.0)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    thread = jobs.SparkThread()
    thread.session = session
    # PySpark's own handler, which ends all jobs, is there only where a session was made by the main thread.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.call(lambda: session.range(1).mapInArrow(waits, "id long").write.parquet(str(folder / "rows")))
    finally:
        signal.signal(signal.SIGINT, handler)

    assert [each for each in threading.enumerate() if each.name == "spark"] == [], "the call is over"
