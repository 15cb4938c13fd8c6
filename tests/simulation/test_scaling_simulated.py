"""Autoscaling of a simulated job: a day with a ramp, a burst and idle hours, and the death of its leader."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest

from benchmarks.autoscaling import DAY_HOURS, STAGES, day, figures
from benchmarks.simulated import SimulatedJob, SimulatedStage
from pipeline.scaling.policies import Kind
from pipeline.scaling.settings import POLICIES, PolicyName, Scaling
from pipeline.settings import Limits

HOUR_SECONDS = 120.0
BURST = (12.0, 12.5)


@cache
def a_day(policy: PolicyName = "ds2", seed: int = 1, *, dies_each: float = 0.0) -> SimulatedJob:
    """`dies_each`: every so many seconds the leader is replaced by one that knows nothing."""
    job = SimulatedJob(STAGES, Scaling(1, 12, policy), day(HOUR_SECONDS, seed))
    until = DAY_HOURS * HOUR_SECONDS
    while job.now < until:
        job.step()
        if dies_each and job.now % dies_each == 0:
            job.fail_over()
    return job


def turns(job: SimulatedJob) -> int:
    """How often the direction of the changes changed."""
    ups = [decision.wanted > decision.before for _, decision in job.changes]
    return sum(one is not other for one, other in pairwise(ups))


@pytest.fixture(params=POLICIES)
def the_day(request: pytest.FixtureRequest) -> SimulatedJob:
    return a_day(request.param)


def test_there_is_never_more_than_one_change_in_a_cooldown(the_day: SimulatedJob) -> None:
    times = [at for at, _ in the_day.changes]

    assert len(times) >= 6
    assert all(later - earlier >= 30.0 for earlier, later in pairwise(times))


def test_the_number_of_workers_does_not_swing(the_day: SimulatedJob) -> None:
    # Up the ramp, down it in the evening; and down after the burst is the same way.
    assert turns(the_day) == 1
    plateau = [at for at, _ in the_day.changes if 15 * HOUR_SECONDS < at < 17 * HOUR_SECONDS]
    night = [at for at, _ in the_day.changes if at < 6 * HOUR_SECONDS or at > 21 * HOUR_SECONDS]
    assert plateau == []
    assert night == []


def test_idle_hours_are_served_by_the_fewest_workers(the_day: SimulatedJob) -> None:
    assert the_day.rows[-1].workers == 1
    assert max(row.workers for row in the_day.rows) > 8


def test_the_backlog_of_the_burst_is_gone_in_the_catch_up_time() -> None:
    job = a_day("ds2")
    settings = Scaling(1, 12)
    # From when it comes until it is measured and a second decision, after the cooldown, has seen it in full.
    reaction = 2 * settings.cooldown_seconds + settings.measure_seconds
    burst_end = BURST[1] * HOUR_SECONDS

    behind = [row.at for row in job.rows if row.at > BURST[0] * HOUR_SECONDS and row.work_seconds > row.workers]

    assert behind, figures(job, HOUR_SECONDS)
    assert max(behind) - burst_end <= settings.catch_up_seconds
    assert max(behind) - behind[0] <= BURST[1] * HOUR_SECONDS - BURST[0] * HOUR_SECONDS + settings.catch_up_seconds
    ramp = [row.at for row in job.rows if row.at < BURST[0] * HOUR_SECONDS and row.work_seconds > reaction]
    assert ramp == []


@pytest.mark.parametrize("catch_up_seconds", [20.0, 60.0])
def test_a_backlog_that_was_there_at_once_is_gone_in_the_time_that_is_asked_for(catch_up_seconds: float) -> None:
    scaling = Scaling(1, 60, catch_up_seconds=catch_up_seconds)
    stages = (SimulatedStage("parse", 500, 1.0, 120), SimulatedStage("count", 500, 0.0, 120))
    job = SimulatedJob(stages, scaling, lambda now: 40_000.0 if now < 2 else 100.0)
    job.run(300)

    (first, decision), *_ = job.changes
    assert decision.wanted > 3
    gone = next(row.at for row in job.rows if row.at > first and row.work_seconds < row.workers)
    assert gone - first <= catch_up_seconds + scaling.warm_up_seconds
    assert all(later.wanted < later.before for _, later in job.changes if _ > gone)


def test_leaders_that_die_again_and_again_change_nothing_of_that() -> None:
    job = a_day(dies_each=40.0)

    times = [at for at, _ in job.changes]
    assert all(later - earlier >= 30.0 for earlier, later in pairwise(times))
    assert turns(job) == 1
    assert job.rows[-1].workers == 1
    assert max(row.workers for row in job.rows) > 8


def test_a_leader_that_dies_before_it_has_measured_never_changes_anything() -> None:
    job = SimulatedJob(STAGES, Scaling(1, 12), day(HOUR_SECONDS))
    job.now = 12 * HOUR_SECONDS
    for _ in range(60):
        job.run(10)
        job.fail_over()

    assert job.rows[0].offered_rate > 5_000
    assert job.changes == []


def test_other_noise_makes_no_other_day() -> None:
    assert turns(a_day(seed=2)) == 1


def test_a_source_that_is_held_back_gets_workers_until_it_is_not() -> None:
    # More than one worker can do, but all that is seen is what the full inboxes let in.
    job = SimulatedJob(
        (SimulatedStage("parse", 1_000, 1.0, 12),),
        Scaling(1, 12, catch_up_seconds=3_600),
        lambda _: 6_000.0,
        limits=Limits(inbox_records=500),
    )
    job.run(600)

    assert job.rows[-1].workers >= 7
    assert any(stage.is_held_back for stage in job.changes[0][1].load.stages)  # type: ignore[union-attr]
    assert all(decision.kind is Kind.UP for _, decision in job.changes)


def test_workers_that_are_slow_to_come_are_waited_for() -> None:
    job = SimulatedJob(STAGES, Scaling(1, 12), lambda _: 4_000.0, boot_seconds=100.0)
    job.run(200)

    assert len(job.changes) <= 2
    assert {decision.kind for decision in job.decisions} >= {Kind.WAITING, Kind.UP}
