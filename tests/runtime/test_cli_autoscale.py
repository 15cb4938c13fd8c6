"""`celeriac autoscale` and the options of `run`: what is shown, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import LocalJob, sequence_pipeline

from pipeline.cli.exits import Exit
from pipeline.cli.main import run_command
from pipeline.lifecycle import JobState
from pipeline.scaling.decision import Decision
from pipeline.scaling.load import Load, StageLoad
from pipeline.scaling.policies import Kind, Need
from pipeline.scaling.settings import Scaling
from pipeline.settings import Limits
from pipeline.store.scaling import ScalingStore

SCALING = Scaling(1, 4)
DECISION = Decision(
    1_700_000_000_000,
    Kind.UP,
    1,
    3,
    "1 worker would have to work 300%",
    "ds2",
    Load(10.0, (StageLoad(0, "in", (), 2, 1_500.0, 500.0, 1.0, 12_345, 9.0, is_held_back=True),), 1, 1, others=1),
    (Need("in", 1_705.0, 500.0, 3.41),),
)


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with LocalJob(redis_url, sequence_pipeline(), limits=Limits(lease_seconds=600.0)) as job:
        yield job


@pytest.fixture(autouse=True)
def address(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERIAC_REDIS", redis_url)


def test_decisions_are_shown_with_their_facts(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    store = ScalingStore(job._scripts)
    store.configure("j", SCALING)
    store.decide("j", job.token, DECISION)

    assert run_command(["autoscale", "j"]) == 0

    line, decision, measured, head, row = capsys.readouterr().out.splitlines()
    assert line.startswith("3 workers wanted, 1..4 by ds2, changed ")
    assert decision.endswith("  1 -> 3  up: 1 worker would have to work 300%")
    assert measured == "  measured for 10 s with 1 worker and 1 that run by themselves"
    assert head.split()[:4] == ["stage", "partitions", "came/s", "taken/s"]
    assert row.split() == [
        "in",
        "(held",
        "back)",
        "2",
        "1,500",
        "500",
        "12,345",
        "9",
        "s",
        "1.00",
        "500",
        "1,705",
        "3.41",
    ]


def test_status_has_one_line_about_it(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["status", "j"])
    assert "scaling " not in capsys.readouterr().out

    ScalingStore(job._scripts).configure("j", SCALING, 2)
    run_command(["status", "j"])
    text = capsys.readouterr().out
    run_command(["status", "j", "--json"])

    assert "scaling   2 workers wanted, 1..4 by ds2, not changed yet; celeriac autoscale j says why" in text
    found = json.loads(capsys.readouterr().out)["scaling"]
    assert (found["minimum"], found["maximum"], found["workers_wanted"]) == (1, 4, 2)


@pytest.mark.usefixtures("job")
def test_a_fixed_number_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["autoscale", "j"]) == 0

    assert "fixed" in capsys.readouterr().out


def test_decisions_as_json_are_those_that_are_kept(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    store = ScalingStore(job._scripts)
    store.configure("j", SCALING)
    store.decide("j", job.token, DECISION)

    run_command(["autoscale", "j", "--json"])

    (found,) = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["before"], found["wanted"]) == ("up", 1, 3)
    assert found["load"]["stages"][0]["backlog"] == 12_345


def test_a_dry_run_measures_and_changes_nothing(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    ScalingStore(job._scripts).configure("j", SCALING, 2)
    job.assign()
    job.worker().ownership.heartbeat("{}")
    job.send([["k", number] for number in range(1, 6)])

    assert run_command(["autoscale", "j", "--dry-run", "--seconds", "2"]) == 0

    text = capsys.readouterr().out
    assert "1..4 by ds2, nothing is changed" in text
    assert "stays 2  unknown: nothing was processed in in" in text
    assert ScalingStore(job._scripts).decisions("j") == []
    assert job.jobs.read("j").workers_wanted == 2
    job.run_and_sweep()


def test_a_dry_run_of_a_job_with_a_fixed_number_takes_its_workers_for_those_that_are_wanted(
    job: LocalJob, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("w0", "w1"):
        job.worker(name).ownership.heartbeat("{}")

    run_command(["autoscale", "j", "--dry-run", "--seconds", "2", "--workers", "1..9", "--json"])

    found = json.loads(capsys.readouterr().out)
    assert (found["before"], found["load"]["workers"], found["load"]["others"]) == (2, 2, 0)
    assert found["policy"] == "ds2"


def test_a_dry_run_of_a_job_that_has_ended_is_refused(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.jobs.transition("j", JobState.CANCELLED)

    assert run_command(["autoscale", "j", "--dry-run"]) == Exit.USAGE

    assert "cancelled: there is nothing to measure" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["autoscale", "j", "--workers", "1..3"], "goes with --dry-run"),
        (["autoscale", "j", "--dry-run", "--catch-up", "5"], "need --workers MIN..MAX"),
        (["run", "flow.py", "--autoscale", "3..1"], "write MIN..MAX, as 1..8"),
        (["run", "flow.py", "--cooldown", "5"], "need --autoscale MIN..MAX"),
        (["run", "flow.py", "--autoscale-policy", "watermarks"], "need --autoscale MIN..MAX"),
        (["autoscale", "nobody"], "there is no job 'nobody'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_message(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run_command(arguments) == Exit.USAGE

    errors = capsys.readouterr().err
    assert words in errors
    assert errors.count("error:") == 1
