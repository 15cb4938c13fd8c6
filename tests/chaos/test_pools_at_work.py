"""A job of two pools as a user runs it: what waits for a pool says so, a node of it joins, no stage leaves its pool."""

from __future__ import annotations

import pytest

from tests.chaos.test_nodes import Node, command
from tests.e2e.chaos import Run, Sequence, Site, wait_until
from tests.e2e.flows import RESTING

SEQUENCE = Sequence(keys=20, count=60)
LONG = Sequence(keys=20, count=1_000)


def write_flow(site: Site, sequence: Sequence) -> None:
    """It rests at two thirds."""
    text = RESTING.format(keys=sequence.keys, count=sequence.count, first=2 * sequence.count // 3)
    site.write(text.replace('name="by_key")', 'name="by_key", pool="heavy")'))


def owners(run: Run, stage: int) -> set[str]:
    return {part.owner for part in run.facts().partitions if part.stage == stage}


@pytest.mark.timeout(240)
def test_a_pool_without_workers_is_named_and_a_node_of_it_ends_the_wait(site: Site) -> None:
    write_flow(site, SEQUENCE)
    run = site.start("flow.py", "--workers", "2", "--partitions", "2", "--pool", "heavy=0", "--node", "home")
    _, job = run.link
    said = f"stage by_key waits for a worker of pool heavy: start one with `celeriac worker {job} FILE.py --pool heavy`"
    wait_until(lambda: said in run.said(), "the run says what it waits for", 60.0)
    assert owners(run, 1) == {""}
    assert f"nodes on this machine join it with --redis '{run.address}'" in run.said()
    assert said.partition(" start")[0] in command(site, run, "status", job)[1]

    code, _, errors = command(site, run, "worker", job, "flow.py", "--pool", "havy")
    assert (code, "has the pool 'havy'" in errors, "did you mean 'heavy'?" in errors) == (2, True, True), errors

    first = Node(site, run, "far", "--pool", "heavy")
    wait_until(lambda: owners(run, 1) == first.workers, "the node has the stage of its pool", 60.0)
    assert owners(run, 0) == {"w0", "w1"}
    run.wait_for_taken(SEQUENCE.keys * 10)

    first.kill()
    second = Node(site, run, "near", "--pool", "heavy")
    wait_until(lambda: owners(run, 1) == second.workers, "another node of the pool has it", 60.0)
    assert owners(run, 0) == {"w0", "w1"}

    (run.folder / "go_on").touch()
    run.finish(seconds=120.0)
    assert second.end() == 0
    SEQUENCE.check(run.folder / "out")
    site.assert_clean("flow.py", "out", "go_on")


@pytest.mark.timeout(240)
def test_a_run_has_workers_for_each_pool_and_the_leader_changes_their_number(site: Site) -> None:
    write_flow(site, LONG)
    scaling = ("--autoscale", "2..2", "--pool", "heavy=1..2", "--catch-up", "5", "--cooldown", "4")
    run = site.start("flow.py", *scaling, "--partitions", "4")
    wait_until(lambda: owners(run, 1) == {"heavy-w0"}, "the pool begins with one worker", 60.0)
    wait_until(lambda: owners(run, 0) == {"w0", "w1"}, "the others have the source", 60.0)
    assert run.facts().record.scaled["heavy"].workers_wanted == 1

    # A record takes it 2 ms, and more come: the leader asks for the other one.
    wait_until(lambda: owners(run, 1) == {"heavy-w0", "heavy-w1"}, "it has two workers by now", 60.0)
    assert owners(run, 0) == {"w0", "w1"}

    (run.folder / "go_on").touch()
    run.finish(seconds=120.0)
    LONG.check(run.folder / "out")
