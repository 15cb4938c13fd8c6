"""Several nodes at one job: one joins, is drained under load, is killed; every key stays in sequence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from pipeline.lifecycle import JobState
from tests.e2e.chaos import Run, Sequence, Site, wait_until
from tests.e2e.flows import RESTING

FIRST = 300
SEQUENCE = Sequence(keys=50, count=FIRST + 20)


class Node:
    """A node of its own: `celeriac worker` as a process."""

    def __init__(self, site: Site, run: Run, name: str, *more: str) -> None:
        self.name = name
        _, job = run.link
        self.log = site.kept_logs / f"{name}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*CELERIAC, "worker", job, "flow.py", "--workers", "2", "--node", name, *more],
                cwd=run.folder,
                env=site.environment(CELERIAC_REDIS=run.address),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def workers(self) -> set[str]:
        return {f"{self.name}.w0", f"{self.name}.w1"}

    def kill(self) -> None:
        """kill -9 of the agent, and so of its workers."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait(10)
        psutil.wait_procs(children, 10)

    def end(self) -> int:
        return self.process.wait(30)


CELERIAC = (sys.executable, "-m", "pipeline.cli.main")


def start_command(site: Site, run: Run, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*CELERIAC, *arguments],
        cwd=run.folder,
        env=site.environment(CELERIAC_REDIS=run.address),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def command(site: Site, run: Run, *arguments: str) -> tuple[int, str, str]:
    process = start_command(site, run, *arguments)
    out, errors = process.communicate(timeout=60)
    return process.returncode, out, errors


def owners_are(run: Run, workers: set[str]) -> None:
    def is_so() -> bool:
        run.assert_running()
        return run.owners() == workers

    wait_until(is_so, f"the owners are {sorted(workers)}", 60.0)


@pytest.mark.timeout(240)
def test_a_node_joins_is_drained_under_load_and_is_killed_and_every_key_stays_in_sequence(site: Site) -> None:
    site.write(RESTING.format(keys=SEQUENCE.keys, count=SEQUENCE.count, first=FIRST))
    run = site.start("flow.py", "--workers", "2", "--partitions", "4", "--node", "home")
    owners_are(run, {"w0", "w1"})
    _, job = run.link
    run.wait_for_taken(SEQUENCE.keys * 10)

    far = Node(site, run, "far")
    owners_are(run, {"w0", "w1"} | far.workers)
    moved = run.taken()
    run.wait_for_taken(moved + SEQUENCE.keys)

    # Home is drained, and one of its workers is killed meanwhile.
    draining = start_command(site, run, "node", "drain", job, "home")
    wait_until(lambda: "home" in run.facts().drained, "home is marked")
    with suppress(psutil.NoSuchProcess):
        run.child("w0").kill()
    out, errors = draining.communicate(timeout=60)
    assert draining.returncode == 0, errors
    assert f"node home of job {job} owns nothing" in out
    assert run.owners() == far.workers

    code, out, _ = command(site, run, "node", "list", job, "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert (code, rows["home"]["state"], rows["home"]["partitions"]) == (0, "drained", 0)
    assert (rows["far"]["state"], rows["far"]["partitions"], rows["far"]["live"]) == ("working", 8, 2)

    code, _, errors = command(site, run, "node", "drain", job, "far")
    assert code == 2
    assert "is the last one" in errors

    assert command(site, run, "node", "undrain", job, "home")[0] == 0
    run.kill("leader")
    owners_are(run, {"w0", "w1"} | far.workers)

    far.kill()
    owners_are(run, {"w0", "w1"})
    near = Node(site, run, "near")
    owners_are(run, {"w0", "w1"} | near.workers)
    code, out, errors = command(site, run, "node", "drain", job, "near", "--stop")
    assert code == 0, errors
    assert near.end() == 0

    code, out, _ = command(site, run, "moves", job, "--json", "--last", "200")
    how = {(each["why"], each["how"]) for each in json.loads(out)}
    assert ("levelling", "collected") in how
    assert ("their node is drained", "collected") in how
    assert ("their worker is gone", "forced") in how

    (run.folder / "go_on").touch()
    run.finish(seconds=120.0)
    SEQUENCE.check(run.folder / "out")
    site.assert_clean("flow.py", "out", "go_on")


def test_a_run_keeps_its_own_redis_until_nodes_that_joined_have_heard_of_the_end(site: Site) -> None:
    site.write(RESTING.format(keys=5, count=2, first=1))
    run = site.start("flow.py", "--workers", "1", "--node", "home")
    owners_are(run, {"w0"})
    node = Node(site, run, "far")
    owners_are(run, {"w0"} | node.workers)

    os.kill(node.process.pid, signal.SIGSTOP)  # its agent hears nothing, its workers work
    (run.folder / "go_on").touch()
    wait_until(lambda: "finished" in run.said(), "the run has said its last word", 60.0)
    assert {run.facts().record.state for _ in range(1_000)} == {JobState.FINISHED}  # Redis stays meanwhile
    os.kill(node.process.pid, signal.SIGCONT)

    run.finish()
    assert node.end() == 0


def test_who_cannot_join_is_told_why(site: Site) -> None:
    site.write(RESTING.format(keys=5, count=2, first=1))
    run = site.start("flow.py", "--workers", "1", "--node", "home")
    owners_are(run, {"w0"})
    _, job = run.link

    code, _, errors = command(site, run, "worker", job, "flow.py", "--node", "home")
    assert (code, "has a node 'home' already" in errors) == (2, True), errors

    code, _, errors = command(site, run, "worker", "nope", "flow.py")
    assert (code, "there is no job 'nope'" in errors) == (2, True), errors

    (run.folder / "other.py").write_text(RESTING.format(keys=5, count=2, first=1).replace('"by_key"', '"else"'))
    code, _, errors = command(site, run, "worker", job, "other.py")
    assert (code, "is not the pipeline that job" in errors) == (2, True), errors

    code, _, errors = command(site, run, "node", "drain", job, "hom")
    assert (code, "has no node 'hom'" in errors, "home" in errors) == (2, True, True), errors

    node = Node(site, run, "far")
    owners_are(run, {"w0"} | node.workers)
    (run.folder / "go_on").touch()
    run.finish()
    assert node.end() == 0  # the job has ended, and so does its node
