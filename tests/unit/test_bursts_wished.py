"""When the autoscaler wants a burst: a pure policy, and the same on a simulated job."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.simulated import SimulatedJob, SimulatedStage, a_partition, a_plan, a_record
from pipeline.facts import JobFacts
from pipeline.operations import About, Operation, PastOperation, Phase
from pipeline.scaling.bursting import burst_wish, catch_up_seconds
from pipeline.scaling.decision import decide
from pipeline.scaling.load import Load, StageLoad
from pipeline.scaling.policies import Kind
from pipeline.scaling.settings import Scaling

NOW_MS = 1_000_000
SCALING = Scaling(1, 4, burst_behind_seconds=100.0)

STAGE = StageLoad(0, "s0", (), 4, 40.0, 400.0, 4.0, 40_000)
"""Of four partitions: 100 records a second for each worker, 10 come a second for each partition."""


def facts_of(*backlogs: int) -> JobFacts:
    parts = tuple(a_partition((0, number), 2 * backlog, 0, backlog) for number, backlog in enumerate(backlogs))
    record = a_record(a_plan([("s0", (), len(backlogs))]), SCALING, 4)
    return JobFacts(record, NOW_MS, parts, (), "leader", 0, {})


def load_of(stage: StageLoad = STAGE) -> Load:
    return Load(10.0, (stage,), 4, 4)


def test_partitions_that_the_most_workers_would_need_too_long_for_are_wished_for() -> None:
    wish = burst_wish(facts_of(9_000, 9_001, 90_000, 0), load_of(), SCALING)

    assert wish is not None
    assert (wish.stage, wish.partitions) == ("s0", (1, 2))
    assert wish.seconds == pytest.approx(1_000.0)
    assert wish.why == (
        "2 partitions of s0 would need 1,000 s with the most workers: Spark is to work off their backlog"
    )


def test_with_fewer_workers_than_partitions_each_has_less_of_a_worker() -> None:
    few = Scaling(1, 2, burst_behind_seconds=100.0)

    wish = burst_wish(facts_of(4_001, 4_001, 4_001, 3_999), load_of(), few)

    assert wish is not None
    assert wish.partitions == (0, 1, 2)


def test_a_partition_that_gets_more_than_it_can_do_is_never_through() -> None:
    flooded = replace(STAGE, arrival_rate=4_000.0)

    assert catch_up_seconds(1, flooded, 1.0) == math.inf
    wish = burst_wish(facts_of(1, 0, 0, 0), load_of(flooded), SCALING)
    assert wish is not None
    assert "would never be through" in wish.why


@pytest.mark.parametrize(
    "stage", [replace(STAGE, is_stopped=True), replace(STAGE, taken_rate=0.0), replace(STAGE, busy_workers=0.0)]
)
def test_a_stage_that_waits_or_whose_speed_is_not_known_is_left_alone(stage: StageLoad) -> None:
    assert burst_wish(facts_of(90_000, 0, 0, 0), load_of(stage), SCALING) is None


def test_without_a_target_there_is_none() -> None:
    assert burst_wish(facts_of(90_000, 0, 0, 0), load_of(), Scaling(1, 4)) is None


def test_none_while_an_operation_is_under_way_or_within_the_cooldown_of_the_last_one() -> None:
    facts = facts_of(90_000, 0, 0, 0)
    about = About("burst", node="n", cuts={"0.0": "9-0/0"})
    under_way = Operation("1", about, Phase.BURSTING, -1, False, NOW_MS, NOW_MS, until_ms=NOW_MS + 1)
    just_now = PastOperation(NOW_MS - 29_000, NOW_MS - 60_000, 0, "done", about)
    before = PastOperation(NOW_MS - 31_000, NOW_MS - 60_000, 0, "done", about)

    def wish(**changes: object) -> bool:
        return burst_wish(replace(facts, **changes), load_of(), SCALING) is not None  # type: ignore[arg-type]

    assert not wish(operation=under_way)
    assert wish(operation=replace(under_way, until_ms=NOW_MS - 1))
    assert not wish(record=replace(facts.record, operations=(just_now,)))
    assert wish(record=replace(facts.record, operations=(before,)))


def test_more_workers_come_before_a_burst() -> None:
    facts = facts_of(90_000, 90_000, 90_000, 90_000)
    few = replace(load_of(), workers=1, wanted=1)
    record = replace(facts.record, workers_wanted=1)

    first = decide(replace(facts, record=record), SCALING, few)
    then = decide(facts, SCALING, load_of())

    assert (first.kind, first.wanted, first.burst) == (Kind.UP, 4, None)
    assert (then.kind, then.wanted) == (Kind.BURST, 4)
    assert then.burst is not None
    assert then.is_news(Kind.LIMITED)


def a_flooded_job(target: float | None, records: int = 200_000) -> SimulatedJob:
    """Of a stage whose four workers do 2,000 a second, and a backlog that is there at once."""
    scaling = Scaling(1, 4, burst_behind_seconds=target)
    job = SimulatedJob(
        (SimulatedStage("count", 500, 0.0, 8),), scaling, lambda now: float(records) if now < 2 else 100.0
    )
    job.run(120)
    return job


def test_a_backlog_that_the_most_workers_are_through_with_in_time_asks_for_none() -> None:
    job = a_flooded_job(600.0)

    assert not [decision for decision in job.decisions if decision.kind is Kind.BURST]
    assert job.rows[-1].backlog < 10_000


def test_one_that_takes_too_long_asks_for_one_once_all_workers_are_there() -> None:
    job = a_flooded_job(30.0)

    wishes = [decision for decision in job.decisions if decision.kind is Kind.BURST]
    assert wishes
    assert wishes[0].before == 4
    assert wishes[0].burst is not None
    assert wishes[0].burst.partitions == tuple(range(8))
    assert wishes[0].burst.seconds > 30.0
    # What is through in the target's time is wished for no more.
    assert job.decisions[-1].kind is not Kind.BURST


def test_without_a_target_a_job_is_scaled_as_ever() -> None:
    with_target, without = a_flooded_job(600.0), a_flooded_job(None)

    assert [at for at, _ in with_target.changes] == [at for at, _ in without.changes]
