"""`celeriac run --engine spark --stream` as a user runs it, with its driver killed, frozen, and beside workers."""

from __future__ import annotations

import sys

import psutil
import pytest

from tests import jvm
from tests.e2e.chaos import Run, Sequence, Site, wait_until

pytestmark = pytest.mark.timeout(900)

SECONDS = 400.0

ENDLESS = """
from pipeline import Pipeline, count, read, write


def numbers(position):
    for number in range(position or 0, (position or 0) + 10):
        yield number + 1, number


flow = Pipeline("endless")
by = flow.source(read.generator(numbers, poll_seconds=0.05), name="in").key_by(lambda n: n % 3, name="by")
by.aggregate(count(), name="n").sink(write.jsonl("out"), name="out")
"""


def start(site: Site, sequence: Sequence, *arguments: str) -> Run:
    site.write(sequence.text)
    given = ("--engine", "spark", "--stream", "--master", "local[2,4]", "--partitions", "2", *arguments)
    return site.start("flow.py", *given, **jvm.FAST)


def wait_for(run: Run, count: float) -> None:
    def is_there() -> bool:
        run.assert_running()
        return run.taken() >= count

    wait_until(is_there, f"{count:.0f} records are taken", SECONDS)


def test_a_driver_that_is_killed_is_replaced_and_the_result_is_exact(site: Site) -> None:
    sequence = Sequence(keys=20, count=1_000, work=300)
    run = start(site, sequence)
    wait_for(run, sequence.taken * 0.1)

    run.kill("spark")

    run.finish(seconds=SECONDS)
    sequence.check(site.root / "work" / "out")
    assert "Spark on local[2,4], 2 partitions a stage" in run.said()
    site.assert_clean("flow.py", "out")


def test_a_driver_that_is_frozen_past_its_lease_loses_all_to_a_worker_and_gets_some_back(
    site: Site, redis_url: str
) -> None:
    """The query's processes go on for a while; what they have in hand is refused. Then both work on."""
    sequence = Sequence(keys=20, count=1_000, work=10_000)
    run = start(site, sequence, "--redis", redis_url, "--job-id", "j")
    wait_for(run, sequence.taken * 0.02)
    worker = psutil.Popen(
        [sys.executable, "-m", "pipeline.cli.main", "worker", "j", "flow.py", "--workers", "1", "--node", "other"],
        cwd=site.root / "work",
        env=site.environment(CELERIAC_REDIS=redis_url),
        start_new_session=True,
    )
    try:
        wait_until(lambda: "other.w0" in run.owners(), "the worker has some", 60.0)
        with run.stopped("spark"):
            wait_until(lambda: run.owners() == {"other.w0"}, "the worker has all", 60.0)
            taken = run.taken()
            wait_until(lambda: run.taken() > taken, "it works on them", 60.0)

        run.finish(seconds=SECONDS)
    finally:
        worker.terminate()
        worker.wait(20)

    sequence.check(site.root / "work" / "out")
    assert "fenced" not in run.said()


def test_a_ctrl_c_drains_it(site: Site) -> None:
    site.write(ENDLESS)
    run = site.start("flow.py", "--engine", "spark", "--stream", "--partitions", "2", **jvm.FAST)
    wait_for(run, 20)

    run.process.send_signal(2)

    run.finish(code=130, seconds=SECONDS)
    assert list((site.root / "work" / "out").glob("part-*"))
