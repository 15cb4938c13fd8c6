"""Scaling policies as pure functions: what a load asks for, and what they never do whatever the load is."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated import a_plan, a_record
from pipeline.errors import PipelineError
from pipeline.facts import JobFacts
from pipeline.scaling.decision import decide
from pipeline.scaling.load import Load, StageLoad
from pipeline.scaling.policies import (
    CALM_SECONDS,
    HELD_BACK_GROWTH,
    Kind,
    Repartition,
    choose,
    ds2,
    target_rates,
    watermarks,
)
from pipeline.scaling.settings import POLICIES, Scaling, parse_range

BOUNDS = Scaling(1, 8)
NOW_MS = 1_000_000


def a_stage(index: int = 0, **changes: Any) -> StageLoad:
    """Of 100 records a second, of which one worker does 100 in a second of work."""
    upstream = (index - 1,) if index else ()
    stage = StageLoad(index, f"s{index}", upstream, 16, 100.0, 100.0, 1.0, 0)
    return replace(stage, **changes)


def a_load(*stages: StageLoad, wanted: int = 2, **changes: Any) -> Load:
    return replace(Load(10.0, stages or (a_stage(),), wanted, wanted), **changes)


def facts_at(wanted: int, scaled_at_ms: int = 0, now_ms: int = NOW_MS, scaling: Scaling = BOUNDS) -> JobFacts:
    record = a_record(a_plan([("s0", (), 16)]), scaling, wanted, scaled_at_ms)
    return JobFacts(record, now_ms, (), (), "leader", 0, {})


# ds2


def test_a_load_between_the_marks_changes_nothing() -> None:
    choice = ds2(a_load(a_stage(arrival_rate=140, taken_rate=140, busy_workers=1.4)), BOUNDS)

    assert (choice.kind, choice.wanted) == (Kind.STEADY, 2)


def test_more_than_the_workers_can_do_asks_for_so_many_that_the_busiest_is_busy_to_the_target() -> None:
    choice = ds2(a_load(a_stage(arrival_rate=300, taken_rate=200, busy_workers=2.0)), BOUNDS)

    # 300/s at 100/s each is the time of three workers. Of 16 partitions four workers have four each, and work 75 %.
    assert (choice.kind, choice.wanted) == (Kind.UP, 4)
    assert choice.needs[0].workers == pytest.approx(3.0)


def test_partitions_are_whole_so_workers_that_would_only_split_the_rest_are_not_asked_for() -> None:
    load = a_load(a_stage(arrival_rate=200, taken_rate=200, busy_workers=2.0, partitions=4))

    # Three workers: one has two of the four partitions, as with two workers. Four have one each.
    assert ds2(load, BOUNDS).wanted == 4


def test_a_backlog_asks_for_what_is_through_with_it_in_the_catch_up_time() -> None:
    scaling = Scaling(1, 100, catch_up_seconds=10)
    load = a_load(a_stage(arrival_rate=0, taken_rate=200, busy_workers=2.0, backlog=8_000, partitions=100))

    assert ds2(load, scaling).wanted == 10
    assert target_rates(load, 10.0) == {0: 800.0}


def test_a_stage_must_do_what_its_upstream_will_send_and_not_what_it_sends_now() -> None:
    entry = a_stage(0, arrival_rate=300, taken_rate=100, busy_workers=1.0)
    behind = a_stage(1, arrival_rate=1_000, taken_rate=1_000, busy_workers=0.5)

    rates = target_rates(a_load(entry, behind), 60.0)

    assert rates == {0: 300.0, 1: 3_000.0}
    assert ds2(a_load(entry, behind), BOUNDS).needs[1].workers == pytest.approx(1.5)


def test_a_stage_behind_two_others_gets_the_share_of_both() -> None:
    one = a_stage(0, arrival_rate=200, taken_rate=100)
    other = a_stage(1, upstream=(), arrival_rate=100, taken_rate=100)
    both = a_stage(2, upstream=(0, 1), arrival_rate=50, taken_rate=50)

    assert target_rates(a_load(one, other, both), 60.0)[2] == pytest.approx(75.0)


def test_senders_that_are_held_back_are_taken_for_more_than_what_came() -> None:
    held = a_load(a_stage(is_held_back=True))

    assert target_rates(held, 60.0) == {0: pytest.approx(100 * HELD_BACK_GROWTH)}


def test_a_sink_that_is_away_asks_for_no_workers() -> None:
    stopped = a_stage(0, backlog=1_000_000, is_stopped=True, is_held_back=True, taken_rate=0.1, busy_workers=0.9)

    choice = ds2(a_load(stopped), BOUNDS)

    assert choice.wanted == 2
    assert watermarks(a_load(replace(stopped, oldest_seconds=999)), BOUNDS).wanted == 2


def test_a_stage_whose_speed_is_not_known_changes_nothing() -> None:
    choice = ds2(a_load(a_stage(taken_rate=0.0, busy_workers=0.0)), BOUNDS)

    assert (choice.kind, choice.wanted) == (Kind.UNKNOWN, 2)
    assert "s0" in choice.why


def test_an_idle_job_goes_down_to_its_minimum_at_once() -> None:
    idle = a_load(a_stage(arrival_rate=0, taken_rate=0, busy_workers=0), wanted=8)

    choice = ds2(idle, replaced(BOUNDS, minimum=2))

    assert (choice.kind, choice.wanted) == (Kind.DOWN, 2)


def test_nobody_goes_while_there_is_a_backlog_to_catch_up_with() -> None:
    backlog = int(CALM_SECONDS * 4 * 100) + 100
    waiting = a_load(a_stage(arrival_rate=10, taken_rate=400, busy_workers=4, backlog=backlog), wanted=4)
    calm = a_load(a_stage(arrival_rate=10, taken_rate=400, busy_workers=4, backlog=backlog - 200), wanted=4)

    assert (ds2(waiting, BOUNDS).kind, ds2(waiting, BOUNDS).wanted) == (Kind.CATCHING_UP, 4)
    assert ds2(calm, BOUNDS).kind is Kind.DOWN


def test_more_work_than_partitions_let_be_shared_asks_for_more_of_that_stage() -> None:
    narrow = a_stage(1, arrival_rate=400, taken_rate=200, busy_workers=2.0, partitions=2)

    choice = ds2(a_load(a_stage(busy_workers=0.1), narrow), BOUNDS)

    assert (
        choice.wanted == 6
    )  # from then on nobody has more than one partition of the narrow stage and two of the other
    assert choice.repartition == Repartition("s1", 2, 8)  # 400/s at 100/s are five workers, busy to the target
    assert "a worker for each partition of the stage s1 (2) is not enough: it gets 8" in choice.why


def test_partitions_are_doubled_only_as_far_as_there_may_be_workers_for_them() -> None:
    narrow = a_stage(1, arrival_rate=4_000, taken_rate=200, busy_workers=2.0, partitions=2)
    load = a_load(a_stage(busy_workers=0.1), narrow)

    assert ds2(load, Scaling(1, 3)).repartition == Repartition("s1", 2, 4)
    assert ds2(load, Scaling(1, 400)).repartition == Repartition("s1", 2, 64)
    limited = ds2(load, Scaling(1, 2))
    assert limited.repartition is None
    assert "is not enough, and more workers are not allowed" in limited.why


def test_no_stage_gets_more_partitions_than_there_are_key_groups() -> None:
    narrow = a_stage(1, arrival_rate=90_000, taken_rate=200, busy_workers=2.0, partitions=3)

    assert ds2(a_load(a_stage(busy_workers=0.1), narrow), Scaling(1, 1_000)).repartition == Repartition("s1", 3, 256)


def test_the_partitions_of_a_source_are_never_changed() -> None:
    choice = ds2(a_load(a_stage(arrival_rate=400, taken_rate=200, busy_workers=2.0, partitions=2)), BOUNDS)

    assert choice.repartition is None
    assert "those of a source are not changed" in choice.why


def test_watermarks_double_the_partitions_of_the_busiest_stage_when_all_have_workers() -> None:
    busy = a_load(
        a_stage(busy_workers=0.5, partitions=1), a_stage(1, busy_workers=1.5, partitions=2), wanted=3, workers=2
    )

    assert watermarks(busy, BOUNDS).repartition == Repartition("s1", 2, 4)
    assert watermarks(busy, Scaling(1, 2)).repartition is None


def test_more_work_than_the_bounds_allow_is_said_and_not_followed() -> None:
    choice = ds2(a_load(a_stage(arrival_rate=5_000, taken_rate=800, busy_workers=8), wanted=8), BOUNDS)

    assert (choice.kind, choice.wanted) == (Kind.LIMITED, 8)
    assert "more than 8 are not allowed" in choice.why


def test_workers_that_run_by_themselves_are_counted_on() -> None:
    busy = a_stage(arrival_rate=300, taken_rate=200, busy_workers=2.0)

    assert ds2(a_load(busy, wanted=1, others=3), BOUNDS).wanted == 1


# watermarks


@pytest.mark.parametrize(
    ("changes", "kind", "wanted"),
    [
        ({"oldest_seconds": 11.0, "backlog": 100}, Kind.UP, 3),
        ({"busy_workers": 1.9}, Kind.UP, 3),
        ({"busy_workers": 1.2, "oldest_seconds": 5.0}, Kind.STEADY, 2),
        ({"busy_workers": 0.5}, Kind.DOWN, 1),
        ({"busy_workers": 0.5, "oldest_seconds": 2.0}, Kind.STEADY, 2),
    ],
)
def test_watermarks_high_is_up_and_low_is_down(changes: dict[str, Any], kind: Kind, wanted: int) -> None:
    choice = watermarks(a_load(a_stage(**changes)), BOUNDS)

    assert (choice.kind, choice.wanted) == (kind, wanted)


def test_watermarks_know_nothing_without_workers_and_ask_for_no_more_than_partitions() -> None:
    old = a_stage(oldest_seconds=99.0, backlog=5, partitions=2)

    assert watermarks(a_load(old, workers=0), BOUNDS).kind is Kind.UNKNOWN
    assert watermarks(a_load(old), BOUNDS).kind is Kind.LIMITED
    assert watermarks(a_load(replace(old, partitions=16), wanted=8), BOUNDS).kind is Kind.LIMITED


# when it is time


def test_nothing_is_decided_in_the_cooldown_and_all_of_it_is_persisted() -> None:
    load = a_load(a_stage(arrival_rate=900))
    just_now = facts_at(2, scaled_at_ms=NOW_MS - 29_000)
    later = facts_at(2, scaled_at_ms=NOW_MS - 30_000)

    assert decide(just_now, BOUNDS, load).kind is Kind.WAITING
    assert decide(later, BOUNDS, load).is_change


def test_nothing_is_decided_before_enough_was_measured() -> None:
    busy = a_load(a_stage(arrival_rate=900), seconds=4.9)

    assert decide(facts_at(2), BOUNDS, None).kind is Kind.WAITING
    assert decide(facts_at(2), BOUNDS, busy).kind is Kind.WAITING
    assert decide(facts_at(2), BOUNDS, replace(busy, seconds=5.0)).is_change


def test_nobody_is_added_while_those_that_are_wanted_have_not_come() -> None:
    decision = decide(facts_at(2), BOUNDS, a_load(a_stage(arrival_rate=900), workers=1))

    assert (decision.kind, decision.wanted) == (Kind.WAITING, 2)
    assert "only 1" in decision.why


def test_troubles_are_news_once_and_quiet_times_never() -> None:
    steady = decide(facts_at(2), BOUNDS, a_load(a_stage(arrival_rate=140, taken_rate=140, busy_workers=1.4)))
    limited = decide(facts_at(8), BOUNDS, a_load(a_stage(arrival_rate=5_000), wanted=8))

    assert not steady.is_news(None)
    assert limited.is_news(Kind.STEADY)
    assert not limited.is_news(Kind.LIMITED)


# whatever the load is

rates = st.one_of(st.just(0.0), st.floats(0, 1e7), st.floats(0, 1e-300))
stage_loads = st.builds(
    StageLoad,
    index=st.just(0),
    name=st.just("s"),
    upstream=st.just(()),
    partitions=st.integers(1, 256),
    arrival_rate=rates,
    taken_rate=rates,
    busy_workers=rates,
    backlog=st.integers(0, 10**9),
    oldest_seconds=rates,
    is_stopped=st.booleans(),
    is_held_back=st.booleans(),
)
scalings = st.builds(
    lambda low, more, policy, catch_up: Scaling(low, low + more, policy, catch_up_seconds=catch_up),
    st.integers(1, 20),
    st.integers(0, 20),
    st.sampled_from(POLICIES),
    st.floats(1, 3600),
)


@st.composite
def loads(draw: st.DrawFn) -> tuple[Load, Scaling]:
    """Up to five stages, each behind any of those before it, and workers within the bounds."""
    scaling = draw(scalings)
    stages = []
    for index, stage in enumerate(draw(st.lists(stage_loads, min_size=1, max_size=5))):
        upstream = draw(st.sets(st.integers(0, index - 1), max_size=2)) if index else set()
        stages.append(replace(stage, index=index, name=f"s{index}", upstream=tuple(sorted(upstream))))
    wanted = draw(st.integers(scaling.minimum, scaling.maximum))
    there = draw(st.integers(0, 20))
    return Load(draw(st.floats(0.1, 60)), tuple(stages), there, wanted, draw(st.integers(0, 3))), scaling


@given(loads())
def test_the_number_is_within_the_bounds_and_no_load_breaks_a_policy(case: tuple[Load, Scaling]) -> None:
    load, scaling = case

    choice = choose(load, scaling)

    assert scaling.minimum <= choice.wanted <= scaling.maximum
    assert choice.why
    assert (choice.kind is Kind.UP) == (choice.wanted > load.wanted)
    assert (choice.kind is Kind.DOWN) == (choice.wanted < load.wanted)
    assert all(math.isfinite(need.workers) and need.workers >= 0 for need in choice.needs)
    assert not any(math.isnan(need.target_rate) for need in choice.needs)


@given(loads(), st.floats(1, 100), st.integers(0, 10**6))
def test_more_to_do_never_asks_for_fewer_workers(case: tuple[Load, Scaling], factor: float, more: int) -> None:
    load, scaling = case
    entry = load.stages[0]
    busier = replace(entry, arrival_rate=entry.arrival_rate * factor, backlog=entry.backlog + more)
    heavier = replace(load, stages=(busier, *load.stages[1:]))

    before, after = choose(load, scaling), choose(heavier, scaling)

    assert after.kind is Kind.UNKNOWN or before.kind is Kind.UNKNOWN or after.wanted >= before.wanted


@given(loads())
def test_what_was_asked_for_is_asked_for_again_and_no_more_of_it(case: tuple[Load, Scaling]) -> None:
    """The dead zone: under the same load the new number stays."""
    load, scaling = case
    choice = ds2(load, scaling)

    again = ds2(replace(load, wanted=scaling.clamp(choice.wanted), workers=scaling.clamp(choice.wanted)), scaling)

    assert again.wanted == choice.wanted


# settings


@pytest.mark.parametrize(("text", "bounds"), [("1..8", (1, 8)), ("3", (3, 3)), ("1000", (1000, 1000))])
def test_a_range_is_read(text: str, bounds: tuple[int, int]) -> None:
    assert parse_range(text) == bounds


@pytest.mark.parametrize("text", ["", "..", "0..3", "3..1", "1..1001", "a..b", "1..", "-1..3", "1...3", "²..3"])
def test_what_is_no_range_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(PipelineError) as raised:
        parse_range(text)

    assert "1..8" in raised.value.hint


def replaced(scaling: Scaling, **changes: Any) -> Scaling:
    return Scaling(**{name: getattr(scaling, name) for name in scaling.__struct_fields__} | changes)
