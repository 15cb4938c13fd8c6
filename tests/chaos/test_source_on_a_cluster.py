"""Spark reads files into a live job on a cluster whose executor, and then whose driver, is killed: each line once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psutil
import pytest

from tests import jvm
from tests.e2e.chaos import Site, read_rows, wait_until

pytestmark = pytest.mark.timeout(600)

FILES: Final = 6
LINES: Final = 60_000
"""Of each file: more than the inbox of one split holds, so tasks wait in the middle of theirs."""

SECONDS: Final = 300.0

FLOW: Final = """
from pathlib import Path
from threading import Event

from pipeline import Pipeline, count, read, total, write


def waiting(line):
    number = int(line)
    while number % 60_000 > 5_000 and not Path("go").exists():
        Event().wait(0.05)
    return number


flow = Pipeline("lines")
numbers = flow.source(read.text("in", reader="spark"), name="in").map(waiting, name="number")
sums = numbers.key_by(lambda number: number % 7, name="by").aggregate(lines=count(), sum=total(), name="sums")
sums.last(name="end").sink(write.jsonl("out"), name="out")
"""


def executors(site: Site) -> set[psutil.Process]:
    found = set()
    for process in site.processes():
        with suppress(psutil.NoSuchProcess):
            if process.name() == "java" and "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.add(process)
    return found


def test_each_line_counts_once_when_an_executor_and_then_the_driver_is_killed(site: Site) -> None:
    site.write(FLOW)
    (site.root / "work/in").mkdir()
    for file in range(FILES):
        numbers = range(file * LINES, (file + 1) * LINES)
        (site.root / f"work/in/{file}.txt").write_text("".join(f"{number}\n" for number in numbers))
    run = site.start("flow.py", "--workers", "1", CELERIAC_SPARK_MASTER="local-cluster[2,1,1024]", **jvm.FAST)

    def wait_for(has_come: Callable[[], bool], what: str) -> None:
        wait_until(lambda: run.assert_running() or has_come(), what, SECONDS)

    wait_for(lambda: run.taken() >= 1_000 and len(executors(site)) == 2, "1,000 lines are taken, by two executors")
    first = executors(site)
    first.copy().pop().kill()
    wait_for(lambda: bool(executors(site) - first), "another executor is there")
    second = executors(site)
    run.kill("source")
    wait_for(lambda: bool(executors(site) - second), "another driver has an executor")
    (run.folder / "go").touch()
    run.finish(seconds=SECONDS)

    of_key = {key: range(key, FILES * LINES, 7) for key in range(7)}
    assert sorted(read_rows(run.folder / "out"), key=lambda row: row["key"]) == [
        {"key": key, "lines": len(numbers), "sum": sum(numbers)} for key, numbers in of_key.items()
    ]
    site.assert_clean("flow.py", "in", "out", "go")
