"""The harness of `celeriac verify`: it breaks off where it is told to, repeats itself, and finds what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import run_command
from pipeline.store import keys
from pipeline.store import scripts as store_scripts
from pipeline.store.connection import connect
from tests.sampling import some
from verification.clock import COMMAND_MS, START_MS
from verification.matrix import Bench, pair_plans, sampled_plans, single_plans
from verification.points import Course, Crash, Life, Points, Variant, scripts_of
from verification.scenarios import SCENARIOS
from verification.world import JOB, Scenario

ROOT = Path(__file__).parents[2]
SHORT = next(scenario for scenario in SCENARIOS if scenario.name == "append by a producer")


@pytest.fixture
def bench(redis_url: str) -> Iterator[Bench]:
    bench = Bench(redis_url)
    yield bench
    bench.close()


@pytest.mark.foreign_keys("n")
@pytest.mark.parametrize(
    ("variant", "counted", "error"),
    [
        (Variant.BEFORE, 1, Crash),
        (Variant.APPLIED, 2, Crash),
        (Variant.AFTER, 2, None),
        (Variant.LOST_REQUEST, 1, ConnectionError),
        (Variant.LOST_REPLY, 2, ConnectionError),
    ],
)
def test_a_command_is_broken_off_where_the_plan_says(
    redis_url: str, variant: Variant, counted: int, error: type[BaseException] | None
) -> None:
    life = Life(Points({2: variant}), "actor")
    client = scripts_of(redis_url, life).client
    client.incr("n")

    if error is None:
        assert client.incr("n") == 2
    else:
        with pytest.raises(error):
            client.incr("n")

    with connect(redis_url) as other:
        assert other.get("n") == str(counted).encode()
        if variant in (Variant.LOST_REQUEST, Variant.LOST_REPLY):
            assert client.incr("n") == counted + 1
        else:
            with pytest.raises(Crash):
                client.incr("n")
            assert other.get("n") == str(counted).encode()


def test_a_pipeline_is_one_point_and_a_greeting_is_none(redis_url: str) -> None:
    points = Points()
    client = scripts_of(redis_url, Life(points, "actor")).client
    with client.pipeline() as pipe:
        pipe.get("a")
        pipe.get("b")
        pipe.execute()

    assert points.sent == ["actor: MULTI+GET+GET+EXEC"]


@pytest.mark.sampled
@pytest.mark.parametrize("scenario", some(SCENARIOS), ids=lambda scenario: scenario.name)
def test_a_scenario_repeats_itself_and_ends_the_same_through_a_fault_of_each_kind(
    bench: Bench, scenario: Scenario
) -> None:
    expected, course = bench.baseline(scenario)
    assert bench.baseline(scenario) == (expected, course)
    assert len(course.sent) > 40

    chosen = sampled_plans(course)[1::7]
    failures = [failure for plan in chosen if (failure := bench.judge(scenario, plan, expected))]

    assert [str(failure) for failure in failures] == []


def test_scripts_that_fail_have_written_nothing(bench: Bench) -> None:
    tally = bench.try_scripts(SHORT)

    assert tally.failures == []
    assert tally.errors > 100
    assert tally.foreign > 100


def _sources(monkeypatch: pytest.MonkeyPatch, name: str, line: str, instead: str) -> None:
    """From now on a script has another line."""
    right = store_scripts.source

    def wrong(asked: str, server: str = "") -> str:
        text = right(asked, server)
        assert asked != name or line in text
        return text.replace(line, instead) if asked == name else text

    monkeypatch.setattr(store_scripts, "source", wrong)
    monkeypatch.setattr("verification.points.source", wrong)
    monkeypatch.setattr("verification.scriptfaults.source", wrong)


def _failures(bench: Bench, scenario: Scenario, wanted: Variant) -> list[str]:
    expected, course = bench.baseline(scenario)
    plans = [plan for plan in single_plans(course) if wanted in plan.values()]
    return [str(failure) for plan in plans if (failure := bench.judge(scenario, plan, expected))]


def test_what_the_harness_compares_shows_a_lost_guard(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _sources(monkeypatch, "append", "if last >= first + count - 1 then", "if false then")
    _sources(monkeypatch, "append", "if last >= first then return {3, last} end", "")
    _sources(monkeypatch, "append", "if first ~= last + 1 then return {-6, last} end", "")
    bench = Bench(redis_url)

    failures = _failures(bench, SHORT, Variant.LOST_REPLY)

    bench.close()
    assert any("append" in failure for failure in failures), failures


def test_a_script_that_writes_before_it_has_looked_is_found(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look = "if key then return redis.error_reply('WRONGTYPE ' .. key) end\n"
    _sources(monkeypatch, "create", look, "")
    bench = Bench(redis_url)

    tally = bench.try_scripts(SHORT)

    bench.close()
    assert any("create.lua has done half of its work" in failure for failure in tally.failures), tally.failures


def test_time_in_a_scenario_is_what_was_sent_and_not_what_a_machine_takes(bench: Bench, redis_url: str) -> None:
    _, course = bench.baseline(SHORT)

    with connect(redis_url) as client:
        seen = [int(part) for part in client.hmget(keys.job(JOB), "made_at", "changed_at", "now")]
    assert seen == sorted(seen)
    assert seen[0] == START_MS + COMMAND_MS * course.sent.index("submitter: create")
    assert seen[-1] <= START_MS + COMMAND_MS * len(course.sent)


def test_a_process_is_told_the_time_of_the_scenario(redis_url: str) -> None:
    points = Points(sent=["another: command"] * 123)
    client = scripts_of(redis_url, Life(points, "actor")).client

    alone = client.time()
    with client.pipeline(transaction=False) as pipe:
        pipe.exists("a")
        pipe.time()
        among = pipe.execute()

    assert alone == (START_MS // 1000 + 1, 240_000)
    assert among == [0, (START_MS // 1000 + 1, 250_000)]


def _reduced(plan: dict[int, Variant], course: Course) -> dict[int, Variant]:
    """The run that stands for one which is left out."""
    [(number, variant)] = plan.items()
    match variant:
        case Variant.LOST_REPLY:
            return {number: Variant.LOST_REQUEST}
        case Variant.APPLIED:
            return {number: Variant.BEFORE}
    actor = course.sent[number - 1].partition(": ")[0] + ": "
    return {next(n for n, name in enumerate(course.sent, 1) if n > number and name.startswith(actor)): Variant.BEFORE}


def test_a_run_that_is_left_out_is_the_same_as_one_that_is_not(bench: Bench) -> None:
    _, course = bench.baseline(SHORT)
    all_ = [{number: variant} for number in range(1, len(course.sent) + 1) for variant in Variant]
    run = single_plans(course)
    left_out = [plan for plan in all_ if plan not in run]
    assert len(left_out) > 100
    assert all(_reduced(plan, course) in run for plan in left_out)

    for plan in left_out[::17]:
        seen, way = bench.watch(SHORT, plan)
        reduced = _reduced(plan, course)
        seen_instead, way_instead = bench.watch(SHORT, reduced)

        sent = list(way_instead.sent)
        if max(reduced) != max(plan):
            del sent[max(reduced) - 1]  # it was never sent: one that died after its reply does not even try
        assert seen == seen_instead
        assert list(way.sent) == sent


def test_what_changes_nothing_or_goes_on_is_known_from_the_run(bench: Bench) -> None:
    _, course = bench.baseline(SHORT)

    changing = {course.sent[number - 1] for number in course.changing}
    assert {"submitter: create", "producer: append", "w0: commit", "w0: heartbeat", "leader-1: lease"} <= changing
    assert not [name for name in changing if "HGETALL" in name or "INFO" in name]
    ends = {course.sent[number - 1] for number in course.last}
    assert "submitter: create" in ends
    assert "leader-1: lease" not in ends


def _course(*steps: str) -> Course:
    """Each step is an actor and what it sends; `!` changes something."""
    sent: list[str] = []
    changing, last = set(), set()
    for step in steps:
        actor, *commands = step.split()
        for command in commands:
            sent.append(f"{actor}: {command.rstrip('!')}")
            if command.endswith("!"):
                changing.add(len(sent))
        last.add(len(sent))
    return Course(tuple(sent), frozenset(changing), frozenset(last))


def test_a_crash_before_and_after_each_script_is_tried_once() -> None:
    course = _course("w PING append! HGETALL commit! RPOP! lease!", "v append", "w attempt! PING")

    assert course.crashes() == [
        {2: Variant.BEFORE},  # after it, the next script is not yet run either
        {4: Variant.BEFORE},
        {4: Variant.APPLIED},  # behind it a ticket is taken
        {6: Variant.BEFORE},
        {6: Variant.APPLIED},  # behind it others go on
        {7: Variant.BEFORE},  # it changes nothing
        {8: Variant.BEFORE},
        {8: Variant.APPLIED},
    ]


def test_pairs_are_all_that_may_come_after_a_first_crash() -> None:
    after = _course("w PING append!", "v lease!", "w commit")

    plans = pair_plans({2: Variant.APPLIED}, after)

    assert plans == [
        {2: Variant.APPLIED, 3: Variant.BEFORE},
        {2: Variant.APPLIED, 3: Variant.APPLIED},
        {2: Variant.APPLIED, 4: Variant.BEFORE},
    ]


def test_a_sample_has_each_command_of_each_process_where_it_comes_first_and_changes_something_last() -> None:
    course = _course("w PING append!", "w append! HGET", "v append!", "w append! PING")

    plans = sampled_plans(course)

    assert [number for plan in plans for number in plan] == [1, 2, 4, 5, 6]
    assert len({variant for plan in plans for variant in plan.values()}) == len(plans)
    assert course.script_ends() == [6]
    assert all(plan in single_plans(course) for plan in plans)


@pytest.mark.timeout(400)
def test_verify_prints_the_matrix_and_says_that_all_is_equal() -> None:
    program = "import sys; from pipeline.cli.main import run_command; sys.exit(run_command(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "verify", "--quick", "--scenario", "timers", "--json"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    assert [row["scenario"] for row in rows] == [s.name for s in SCENARIOS if "timers" in s.name]
    assert all(row["failed"] == 0 and row["points"] > 40 for row in rows)
    assert all(row["runs"]["pair of crashes"] > 20 for row in rows)
    assert all(sum(row["runs"][variant] for variant in Variant) < row["different"] for row in rows)


def test_verify_names_its_scenarios_when_it_does_not_know_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["verify", "--scenario", "nosuch"]) == 2

    assert "no scenario is called 'nosuch'; there are: append by a producer," in capfd.readouterr().err
