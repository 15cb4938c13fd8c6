"""The harness of `celeriac verify`: it breaks off where it is told to, repeats itself, and finds what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import run_command
from pipeline.store import scripts as store_scripts
from pipeline.store.connection import connect
from verification.matrix import Bench, pair_plans, single_plans
from verification.points import Crash, Life, Points, Variant, scripts_of
from verification.scenarios import SCENARIOS
from verification.world import Scenario

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


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_repeats_itself_and_ends_the_same_through_a_fault_of_each_kind(
    bench: Bench, scenario: Scenario
) -> None:
    expected, sent = bench.baseline(scenario)
    assert bench.baseline(scenario) == (expected, sent)
    assert len(sent) > 40

    variants = tuple(Variant)
    chosen = [{number: variants[number % len(variants)]} for number in range(3, len(sent), 11)]
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


def _failures(bench: Bench, scenario: Scenario, variants: Sequence[Variant]) -> list[str]:
    expected, sent = bench.baseline(scenario)
    plans = single_plans(len(sent), variants)
    return [str(failure) for plan in plans if (failure := bench.judge(scenario, plan, expected))]


def test_what_the_harness_compares_shows_a_lost_guard(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _sources(monkeypatch, "append", "if last >= first + count - 1 then", "if false then")
    _sources(monkeypatch, "append", "if last >= first then return {3, last} end", "")
    _sources(monkeypatch, "append", "if first ~= last + 1 then return {-6, last} end", "")
    bench = Bench(redis_url)

    failures = _failures(bench, SHORT, (Variant.LOST_REPLY,))

    bench.close()
    assert any("append" in failure for failure in failures), failures


def test_a_script_that_writes_before_it_has_looked_is_found(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look = "if key then return redis.error_reply('WRONGTYPE ' .. key) end\n"
    _sources(monkeypatch, "create", look, "")
    bench = Bench(redis_url)

    tally = bench.try_scripts(SHORT)

    bench.close()
    assert any("create.lua has done half of its work" in failure for failure in tally.failures), tally.failures


def test_pairs_are_all_pairs_of_scripts() -> None:
    sent = ["w: PING", "w: append", "w: HGETALL", "w: commit", "w: RPOP", "w: lease"]

    plans = list(pair_plans(sent))

    assert {tuple(plan) for plan in plans} == {(2, 4), (2, 6), (4, 6)}
    assert len(plans) == 3 * 4


def test_verify_prints_the_matrix_and_says_that_all_is_equal() -> None:
    program = "import sys; from pipeline.cli.main import run_command; sys.exit(run_command(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "verify", "--quick", "--scenario", "append by a producer", "--json"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    assert [row["scenario"] for row in rows] == [s.name for s in SCENARIOS if "append by a producer" in s.name]
    assert all(row["failed"] == 0 and row["points"] > 40 for row in rows)
    assert all(row["runs"]["pair of crashes"] > 20 for row in rows)


def test_verify_names_its_scenarios_when_it_does_not_know_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["verify", "--scenario", "nosuch"]) == 2

    assert "no scenario is called 'nosuch'; there are: append by a producer," in capfd.readouterr().err
