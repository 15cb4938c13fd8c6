"""A real job that is scaled: a backlog brings workers, rest takes them away, and every key stays in sequence."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pipeline.scaling.policies import Kind
from pipeline.store.scaling import ScalingStore
from pipeline.store.scripts import Scripts
from tests.e2e.chaos import Run, Sequence, Site, wait_until
from tests.e2e.flows import RESTING

FIRST = 180
SEQUENCE = Sequence(keys=50, count=FIRST + 20)


def alive(run: Run) -> set[str]:
    """The worker processes that are there."""
    return {name for name in ("w0", "w1", "w2", "w3") if run.find(name) is not None}


def until(run: Run, workers: set[str], seconds: float = 60.0) -> None:
    def is_so() -> bool:
        run.assert_running()
        return alive(run) == workers

    wait_until(is_so, f"the workers are {sorted(workers)}", seconds)


@pytest.mark.timeout(240)
def test_a_backlog_makes_three_workers_of_one_and_rest_makes_one_again_through_the_death_of_the_leader(
    site: Site,
) -> None:
    site.write(RESTING.format(keys=SEQUENCE.keys, count=SEQUENCE.count, first=FIRST))
    run = site.start("flow.py", "--autoscale", "1..3", "--cooldown", "4", "--catch-up", "5", "--partitions", "6")

    until(run, {"w0"})
    run.wait_for_taken(SEQUENCE.keys * 20)
    until(run, {"w0", "w1", "w2"})
    run.kill("leader")
    wait_until(lambda: run.owners() == {"w0", "w1", "w2"}, "all three have partitions", 60.0)
    until(run, {"w0"}, 120.0)
    assert run.owners() == {"w0"}
    _, job = run.link
    decisions = ScalingStore(Scripts(run._client)).decisions(job)
    (run.folder / "go_on").touch()
    run.finish(seconds=120.0)

    SEQUENCE.check(run.folder / "out")
    changes = [each for each in reversed(decisions) if each.is_change]
    assert (changes[0].kind, changes[0].before, changes[0].wanted) == (Kind.UP, 1, 3)
    assert {each.kind for each in changes[1:]} == {Kind.DOWN}
    assert changes[-1].wanted == 1
    assert all(later.at_ms - one.at_ms >= 4_000 for one, later in pairwise(changes))
    # None of the workers that left was missed or killed: their partitions were given away before.
    assert "dies again" not in run.log("node")
    assert "their worker is gone" not in run.log("leader")
    site.assert_clean("flow.py", "out", "go_on")


def test_a_run_without_the_option_keeps_its_workers(site: Site) -> None:
    site.write(RESTING.format(keys=5, count=2, first=2))
    run = site.start("flow.py", "--workers", "2")

    run.finish()

    Sequence(keys=5, count=2).check(run.folder / "out")
