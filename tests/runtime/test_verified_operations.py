"""What the scenarios of shadows, backfills and bursts show: their ends in words, and faults that other tests miss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from verification.matrix import Bench, plans_of, single_plans
from verification.points import Course, Variant
from verification.scenarios import SCENARIOS
from verification.shadower import NEW, OLD
from verification.world import Scenario

PROMOTED = "a new version beside the job, put in its place"
BACK = "the version before in its place again, by a second shadow"
DROPPED = "a new version beside the job, dropped"
SWAPPED = "the state of some keys, computed anew and swapped"
BURST = "a backlog worked off by a burst, and handed back at its cut"


@pytest.fixture
def bench(redis_url: str) -> Iterator[Bench]:
    bench = Bench(redis_url)
    yield bench
    bench.close()


def scenario_of(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


def failures(bench: Bench, name: str, sent: str, *variants: Variant) -> list[str]:
    """What is not equal when one of these befalls a command of that name, wherever that is sent."""
    scenario = scenario_of(name)
    expected, course = bench.baseline(scenario)
    numbers = [number for number, each in enumerate(course.sent, 1) if each == sent]
    assert numbers, f"nobody sends {sent}"
    plans = [{number: variant} for number in numbers for variant in variants if variant in course.variants(number)]
    return [str(failure) for plan in plans if (failure := bench.judge(scenario, plan, expected))]


def outputs(bench: Bench, name: str) -> dict[str, Any]:
    seen, _ = bench.baseline(scenario_of(name))
    assert (seen["dead letters"], seen["alarms"], seen["not drained"]) == ([], [], [])
    return {**seen["outputs"], **seen["handed out"]}


def test_a_version_in_the_jobs_place_goes_on_with_what_its_shadow_has_seen(bench: Bench) -> None:
    numbers = [1, 2, 3, 4, 5, 6]
    kept = {"held back": [], "left of shadows": []}

    assert outputs(bench, PROMOTED) == {key: (numbers, [OLD, NEW]) for key in ("'a'", "'b'")} | kept
    numbers += [7, 8]
    assert outputs(bench, BACK) == {key: (numbers, [OLD, NEW, OLD]) for key in ("'a'", "'b'")} | kept
    assert {code for key in "ab" for code, *_ in outputs(bench, DROPPED)["out"][repr(key)]} == {OLD}


def test_state_that_was_wrong_is_right_from_some_record_on_and_at_the_end(bench: Bench) -> None:
    numbers = [1, 2, 3, 4, 5, 6]

    assert outputs(bench, SWAPPED) == {
        "out": {"'a'": (numbers, [9, 0]), "'b'": (numbers, [0]), "'c'": ([1, 2], [9])},
        "ends": {"'a'": [[6, 21]], "'b'": [[6, 21]], "'c'": [[2, 3]]},
        "held back": [],
    }


def test_a_burst_works_its_backlog_off_up_to_the_cut(bench: Bench) -> None:
    found = outputs(bench, BURST)

    assert found["worked off by the node"]
    assert found["out"] == {key: [1, 2, 3, 4, 5, 6] for key in ("'a'", "'b'")}


def test_what_is_wanted_of_a_shadow_is_heard_again_when_the_answer_that_told_it_was_lost(bench: Bench) -> None:
    assert failures(bench, PROMOTED, "shadower: report", Variant.LOST_REPLY, Variant.LOST_REQUEST) == []
    assert failures(bench, PROMOTED, "shadower: promote", *Variant) == []


def test_a_backfill_lets_go_what_the_one_before_has_left_held_back(bench: Bench) -> None:
    assert failures(bench, SWAPPED, "backfiller: holdback", *Variant) == []
    assert failures(bench, SWAPPED, "backfiller: swap", *Variant) == []


def test_a_burst_goes_on_from_where_its_node_has_died(bench: Bench) -> None:
    assert failures(bench, BURST, "spark: commit", *Variant) == []


def test_who_has_only_read_since_another_point_dies_there(bench: Bench) -> None:
    scenario = scenario_of(SWAPPED)
    _, course = bench.baseline(scenario)
    left_out = [plan for plan in single_plans(course) if plan not in plans_of(scenario, course)]
    assert len(left_out) > 20
    assert {variant for plan in left_out for variant in plan.values()} == {Variant.BEFORE}

    for plan in left_out[::29]:
        number = max(plan)
        seen, way = bench.watch(scenario, plan)
        seen_before, way_before = bench.watch(scenario, {number - 1: Variant.BEFORE})

        sent = list(way.sent)
        assert sent.pop(number - 2) == course.sent[number - 2]  # only the point before was passed
        assert seen == seen_before
        assert [name.partition(": ")[0] for name in sent[: number - 2]] == [
            name.partition(": ")[0] for name in way_before.sent[: number - 2]
        ]


def test_faults_of_a_scenario_that_begins_behind_another_are_deaths_around_scripts_from_there_on(bench: Bench) -> None:
    scenario = scenario_of(BACK)
    _, course = bench.baseline(scenario)

    plans = plans_of(scenario, course)

    first = course.sent.index("shadower: promote") + 2
    assert plans == [plan for plan in course.crashes() if min(plan) >= first]
    assert len(plans) > 100
    assert _course_is_longer(course, first)


def _course_is_longer(course: Course, first: int) -> bool:
    return "shadower: promote" in course.sent[first:]
