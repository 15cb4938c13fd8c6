"""Processes that stop at the moment at which they write, beyond every lease, and write when others have taken over.

Each is frozen, all of it, just before it sends a script, and thaws when its work was done by others: the script itself
must refuse it. What it was answered is told by `spoiled/freezing.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipeline import Pipeline, read, write
from pipeline.graph import SourceSpec
from pipeline.sources.runner import feed_source
from pipeline.store.senders import FeedAddress
from tests.e2e.chaos import ROOT, SPOILED, Run, Sequence, Site, wait_until
from tests.runtime.harness import LocalJob, assert_sequence, numbered, oracle_of


class Freezer:
    """One freeze of one process of these roles, at one script."""

    def __init__(self, folder: Path, roles: str, script: str) -> None:
        folder.mkdir()
        self._folder = folder
        self._told = f"{roles} {script} {folder}"

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": SPOILED, "CELERIAC_TEST_FREEZE": self._told}

    def arm(self) -> None:
        """The next one to send the script is frozen."""
        (self._folder / "armed").touch()

    def await_frozen(self) -> psutil.Process:
        wait_until((self._folder / "pid").exists, f"a process stops: {self._told}", 60.0)
        process = psutil.Process(int((self._folder / "pid").read_text()))
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "it has stopped")
        return process

    def thaw(self, process: psutil.Process) -> str:
        """What the process was answered to what it was about to send."""
        assert not (self._folder / "answer").exists()
        process.resume()
        wait_until((self._folder / "answer").exists, "the late write was answered")
        return (self._folder / "answer").read_text()


@pytest.fixture
def freezer(tmp_path: Path, request: pytest.FixtureRequest) -> Freezer:
    return Freezer(tmp_path / "freezer", *request.param)


@pytest.mark.parametrize("freezer", [("w0,w1", "commit")], indirect=True)
def test_a_late_commit_of_a_worker_is_fenced_by_the_script(site: Site, freezer: Freezer) -> None:
    sequence = Sequence(count=4_000)
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2", **freezer.environment)
    run.wait_for_taken(0.1 * sequence.taken)

    freezer.arm()
    frozen = freezer.await_frozen()
    late, other = ("w0", "w1") if frozen == run.child("w0") else ("w1", "w0")
    wait_until(lambda: run.owners() == {other}, f"{other} has taken over")
    run.wait_for_taken(run.taken() + 1)
    answer = freezer.thaw(frozen)
    run.finish()

    assert answer == "[-1]"
    assert "fenced: another worker has taken over; nothing was written" in run.log(late)
    assert "the books balance: " in run.said()
    sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out")


@pytest.mark.parametrize("freezer", [("leader", "assign")], indirect=True)
def test_a_late_assignment_of_a_leader_is_refused_by_the_script(site: Site, freezer: Freezer) -> None:
    sequence = Sequence(count=4_000)
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2", **freezer.environment)
    run.wait_for_taken(0.1 * sequence.taken)

    freezer.arm()
    run.kill(min(run.owners()))  # one that began late may own nothing yet
    assert_late(site, run, freezer, "partitions assigned, ")

    sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out")


@pytest.mark.parametrize("freezer", [("leader", "close")], indirect=True)
def test_a_late_end_of_the_input_by_a_leader_is_refused_by_the_script(site: Site, freezer: Freezer) -> None:
    sequence = Sequence(count=1_500)
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2", **freezer.environment)
    run.wait_for_taken(1)

    freezer.arm()
    assert_late(site, run, freezer, "source ended: ")

    sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out")


def assert_late(site: Site, run: Run, freezer: Freezer, act: str) -> None:
    """While the leader is frozen a second one leads and acts; the first is refused. To the end of the run."""
    frozen = freezer.await_frozen()
    second = site.start_leader(run.address, "second")
    log = site.kept_logs / "second.log"
    wait_until(lambda: act in log.read_text(), f"the second leader has said: {act}")
    assert freezer.thaw(frozen) == "[-1]"
    wait_until(
        lambda: f"lease lost, another leader acts: job={run.link[1]}" in run.log("leader"), "the first one says so"
    )
    second.kill()  # and the first one leads again
    second.wait()
    run.finish()

    assert "the books balance: " in run.said()


PRODUCER = """
import sys
from pipeline.errors import StaleSender
from pipeline.producer import Producer

producer = Producer("j", name="shop", lanes=1, batch_records=50)
try:
    for number in range(1, 401):
        for key in "abc":
            producer.send(key, [key, number])
    producer.close()
except StaleSender as error:
    sys.exit(f"refused: {error}")
"""


@pytest.mark.parametrize("freezer", [("", "append")], indirect=True)
def test_a_late_append_of_a_producer_is_refused_by_the_script(redis_url: str, freezer: Freezer) -> None:
    freezer.arm()
    command = [sys.executable, "-c", PRODUCER]
    with a_job(redis_url, read.producer()) as job:
        environment = {**os.environ, "CELERIAC_REDIS": redis_url}
        first = subprocess.Popen(command, env={**environment, **freezer.environment}, stderr=subprocess.PIPE, text=True)
        try:
            frozen = freezer.await_frozen()
            subprocess.run(command, env={**environment, "PYTHONPATH": str(ROOT)}, check=True, timeout=60)
            job.run_until_idle()
            answer = freezer.thaw(frozen)
            _, said = first.communicate(timeout=60)
        finally:
            first.kill()
            first.wait()
        job.run_until_idle()

        assert answer == "[-2, 1200]"
        assert first.returncode == 1
        assert said.startswith("refused: "), said
        assert_sequence(job, "abc", 400)


FEEDER = """
import sys
from pipeline.graph import SourceSpec
from pipeline.sources.runner import feed_source
from pipeline.store.senders import FeedAddress

feed_source(SourceSpec("json", sys.argv[1]), FeedAddress(sys.argv[2], "j", "in"), reader="spark", master="local[2,4]")
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("freezer", [("", "append")], indirect=True)
def test_a_late_append_of_a_spark_task_is_taken_for_what_it_is_a_duplicate(
    tmp_path: Path, redis_url: str, freezer: Freezer
) -> None:
    """Another attempt at the task has done all of its work; the process that Spark runs Python in was frozen."""
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in numbered("abc", 400)))
    freezer.arm()
    with a_job(redis_url, read.json(path)) as job:
        driver = subprocess.Popen(
            [sys.executable, "-c", FEEDER, str(path), redis_url],
            env={**os.environ, **freezer.environment, "CELERIAC_SPARK_FAST_START": "1"},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            frozen = freezer.await_frozen()
            feed_source(SourceSpec("json", str(path)), FeedAddress(redis_url, "j", "in"), reader="local")
            job.run_until_idle()
            answer = freezer.thaw(frozen)
            _, said = driver.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        job.run_until_idle()

        assert frozen.pid != driver.pid
        assert answer == "[2, 1200]"
        assert driver.returncode == 0, said
        assert_sequence(job, "abc", 400)


def a_job(redis_url: str, source: SourceSpec) -> LocalJob:
    """The oracle behind the source; its books are looked at when it is closed."""
    flow = Pipeline("zombies")
    oracle_of(flow.source(source, name="in")).sink(write.stream("out"), name="out")
    job = LocalJob(redis_url, flow)
    job.assign()
    return job
