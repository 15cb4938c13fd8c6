"""The Spark engine as a process of its own: interrupted, and on a cluster. For one that is killed see test_backfill."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.chaos import Run, Sequence, Site, wait_until
from tests.spark.finals import check_finals, with_finals

pytestmark = pytest.mark.timeout(900)

SECONDS = 600.0
"""Spark's start takes its time on a busy machine."""

ENGINE = ("--engine", "spark", "--partitions", "2")
FAST = {"CELERIAC_SPARK_FAST_START": "1"}

WAITING = """
from pathlib import Path
from threading import Event

from pipeline import Pipeline, count, read, write


def waiting(value):
    if value == {at}:
        Path("hand").touch()
        Event().wait(600)
    return value


flow = Pipeline("waiting")
numbers = flow.source(read.iterable({items}), name="in")
keyed = numbers.map(waiting, name="wait").external("cat", protocol="lines", name="cat").key_by(lambda v: v, name="by")
keyed.aggregate(count(), name="n").sink(write.jsonl("out"), name="out")
"""


def started(site: Site, text: str, *arguments: str) -> Run:
    site.write(text)
    return site.start("flow.py", *ENGINE, *arguments, **FAST)


def wait_for(run: Run, sign: Path) -> None:
    def is_there() -> bool:
        run.assert_running()
        return sign.exists()

    wait_until(is_there, f"there is {sign}", SECONDS)


def test_an_interrupted_run_leaves_nothing(site: Site) -> None:
    run = started(site, WAITING.format(at="'x3'", items="[f'x{n}' for n in range(9)]"), "--master", "local[2,4]")
    wait_for(run, run.folder / "hand")

    run.process.send_signal(signal.SIGINT)  # the one that PySpark and py4j have ideas of their own about
    run.finish(code=130, seconds=SECONDS)

    assert run.said().splitlines()[-1].startswith("cancelled run waiting-")
    site.assert_clean("flow.py", "hand")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_while_it_reads_its_input_starts_no_spark(site: Site, number: signal.Signals) -> None:
    text = WAITING.format(at="-1", items="lambda: map(waiting, [-1])")
    run = started(site, text, "--master", "local[2,4]")
    wait_for(run, run.folder / "hand")
    assert not [each for each in site.processes() if each.name() == "java"]

    run.process.send_signal(number)
    run.finish(code=130, seconds=SECONDS)

    site.assert_clean("flow.py", "hand")


def test_a_cluster_computes_and_filters_itself_and_order_holds_though_its_shuffle_has_none(site: Site) -> None:
    sequence = Sequence(keys=20, count=400)
    run = started(site, with_finals(site, sequence.text), "--master", "local-cluster[2,1,1024]")

    run.finish(seconds=SECONDS)

    sequence.check(run.folder / "out")
    check_finals(run)
    site.assert_clean("flow.py", "out", "finals", "sevens")
