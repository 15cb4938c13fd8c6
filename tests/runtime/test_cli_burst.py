"""`celeriac burst` up to where Spark starts, what it chooses and refuses; and nodes that begin what is decided."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from leader.duties.autoscale import Autoscale
from pipeline.bursts import WISH_SECONDS, is_burst_pool
from pipeline.cli.exits import Exit
from pipeline.cli.main import run_command
from pipeline.facts import JobFacts, WorkerFacts
from pipeline.lifecycle import JobState
from pipeline.operations import About, Phase
from pipeline.positions import Position
from pipeline.scaling.decision import Decision
from pipeline.scaling.policies import BurstWish, Kind
from pipeline.scaling.settings import Scaling
from pipeline.settings import Limits
from pipeline.store.claims import ClaimStore
from pipeline.store.operations import OperationStore
from pipeline.store.scaling import ScalingStore
from stages.bursting import Bursting
from stages.member import MemberSettings
from tests.e2e.chaos import wait_until
from tests.runtime.harness import LocalJob, numbered, sequence_pipeline

KEYS: Final = [f"k{number}" for number in range(9)]

FLOW: Final = """
from tests.runtime.harness import sequence_pipeline

flow = sequence_pipeline(2)
"""


@pytest.fixture
def job(redis_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalJob]:
    """Its first stage is through, the second has all before it: 200 and 160 records."""
    monkeypatch.setenv("CELERIAC_REDIS", redis_url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(FLOW)
    with LocalJob(redis_url, sequence_pipeline(2), limits=Limits(lease_seconds=600.0)) as job:
        job.assign()
        job.send(numbered(KEYS, 40), entry_records=7)
        while any(job.facts((0, number)).backlog for number in (0, 1)):
            for number in (0, 1):
                job.slice("w0", (0, number))
        yield job


def said(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """What the command prints, which must end with that code."""
    assert run_command(["burst", "j", *arguments]) == code
    found = capsys.readouterr()
    return found.out + found.err


def test_a_dry_run_shows_what_is_behind_and_changes_nothing(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    before = job.jobs.facts("j")

    shown = said(capsys, 0, "flow.py", "--behind", "160", "--dry-run")

    assert [line.split() for line in shown.splitlines()] == [
        ["partition", "stage", "behind", "at", "its", "pace"],
        ["1.0", "hop_1", "200", "records", "?"],
        ["1.1", "hop_1", "160", "records", "?"],
    ]
    assert "1.1" not in said(capsys, 0, "flow.py", "--behind", "161", "--dry-run")
    assert "1.0" not in said(
        capsys, 0, "flow.py", "--stage", "hop_1", "--partitions", "1", "--behind", "1", "--dry-run"
    )
    assert "1.0" in said(capsys, 0, "flow.py", "--stage", "hop_1", "--behind", "1", "--dry-run")
    after = job.jobs.facts("j")
    assert (after.operation, after.partitions) == (None, before.partitions)


@pytest.mark.usefixtures("job")
def test_the_pace_is_measured_when_a_time_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, 0, "flow.py", "--behind", "60s", "--dry-run")

    assert [line.split()[-1] for line in shown.splitlines()[1:]] == ["never", "never"]


@pytest.mark.parametrize("behind", ["201", "1000"])
def test_where_nothing_is_behind_it_says_so_and_ends_well(
    job: LocalJob, capsys: pytest.CaptureFixture[str], behind: str
) -> None:
    shown = said(capsys, 0, "flow.py", "--behind", behind)

    assert (
        f"no partition of job j is {int(behind):,} records behind (the furthest is 200 records behind): nothing to do"
        in shown
    )
    assert job.jobs.facts("j").operation is None
    assert job.jobs.read("j").operations == ()


def test_what_cannot_be_is_refused_with_a_way_out(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, Exit.USAGE, "flow.py", "--stage", "hop")
    assert "job 'j' has no stage 'hop'" in shown
    assert "hop_1" in shown
    shown = said(capsys, Exit.USAGE, "flow.py", "--stage", "hop_1", "--partitions", "0,2")
    assert "stage hop_1 of job 'j' has no partition 2" in shown
    assert "they are 0 to 1" in shown
    assert "--partitions N,N,… needs --stage" in said(capsys, Exit.USAGE, "flow.py", "--partitions", "1")
    assert "write records, as 10000, or seconds, as 60s" in said(capsys, Exit.USAGE, "flow.py", "--behind", "soon")
    assert "write numbers, as 1,2,5, or all" in said(capsys, Exit.USAGE, "flow.py", "--partitions", "1,x")
    Path("other.py").write_text(FLOW.replace("sequence_pipeline(2)", "sequence_pipeline(3)"))
    assert "other.py is not the pipeline that job 'j' was started with" in said(capsys, Exit.USAGE, "other.py")
    assert job.jobs.facts("j").operation is None


def test_a_paused_stage_is_refused_by_its_name_and_else_left_out(
    job: LocalJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job.jobs.pause_stage(job.jobs.read("j"), "hop_1", is_paused=True)

    shown = said(capsys, Exit.USAGE, "flow.py", "--stage", "hop_1")
    assert "stage hop_1 of job 'j' is paused: nobody works on it, Spark neither" in shown
    assert "celeriac unpause j --stage hop_1" in shown
    assert "nothing to do" in said(capsys, 0, "flow.py", "--behind", "1")


def test_a_job_that_does_not_run_is_refused(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.jobs.transition("j", JobState.CANCELLED, "by the test")

    assert "job 'j' is cancelled: there is nothing to work on" in said(capsys, Exit.USAGE, "flow.py")


def test_beside_another_operation_it_is_busy_and_starts_nothing(
    job: LocalJob, capsys: pytest.CaptureFixture[str]
) -> None:
    about = About("burst", by="me", node="other.burst-1", cuts={"1.0": "9-0/0"})
    ClaimStore(job._scripts).undertake("j", about, Phase.BURSTING)

    shown = said(capsys, Exit.USAGE, "flow.py", "--behind", "1")

    assert "job 'j' is busy: burst of 1 partition, since 0 s, phase bursting" in shown
    operation = job.jobs.facts("j").operation
    assert operation is not None
    assert operation.about == about


def test_without_spark_it_says_how_to_get_it(
    job: LocalJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.startswith("pipeline.spark")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [each for each in sys.modules if each.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.delattr("pipeline.spark.bulk.engine", raising=False)

    shown = said(capsys, Exit.ENVIRONMENT, "flow.py", "--behind", "1")

    assert "pip install 'celeriac[spark]'" in shown
    assert job.jobs.facts("j").operation is None


# what the autoscaler decides


SCALING: Final = Scaling(1, 1, warm_up_seconds=0.0, measure_seconds=1.0, burst_behind_seconds=10.0)


def facts_at(job: LocalJob, second: int) -> JobFacts:
    """As if the one worker had done ten records of 10,000 in each second so far."""
    done = 10 * second
    part = replace(job.facts((1, 0)), taken=done, backlog=10_000 - done, position=Position(f"{done + 1}-0"))
    busy = WorkerFacts("w0", "1-a", 0.1, False, {"busy": {"1": float(second)}, "sized": True})
    return replace(job.jobs.facts("j"), now_ms=1_000_000 + 1_000 * second, partitions=(part,), workers=(busy,))


def test_the_leader_wishes_for_a_burst_keeps_why_and_again_only_when_nobody_has_begun_it(job: LocalJob) -> None:
    store = ScalingStore(job._scripts)
    store.configure("j", SCALING, 1)
    duty = Autoscale(store, OperationStore(job._scripts))

    rounds = [duty.run_once(facts_at(job, second), job.token) for second in range(80)]

    wished = [second for second, counts in enumerate(rounds) if counts.get("bursts_wanted")]
    assert len(wished) == 2
    assert wished[1] - wished[0] == WISH_SECONDS
    newest, oldest = [each for each in store.decisions("j") if each.kind is Kind.BURST]
    assert (oldest.wanted, newest.at_ms - oldest.at_ms) == (1, 60_000)
    assert oldest.burst is not None
    assert (oldest.burst.stage, oldest.burst.partitions) == ("hop_1", (0,))
    assert oldest.burst.seconds == pytest.approx(1_000, rel=0.05)
    assert oldest.load is not None


def a_wish(job: LocalJob, kind: Kind = Kind.BURST) -> Decision:
    wish = BurstWish("hop_1", (0, 1), 700.0) if kind is Kind.BURST else None
    return Decision(job.jobs.facts("j").now_ms, kind, 1, 1, "why", "ds2", burst=wish)


def test_a_node_that_offers_it_begins_what_is_decided_once(job: LocalJob, tmp_path: Path) -> None:
    store = ScalingStore(job._scripts)
    store.configure("j", SCALING, 1)
    told = {"CELERIAC_REDIS": job.url, "CELERIAC_JOB": "j", "CELERIAC_PIPELINE": "flow.py"}
    program = (sys.executable, "-c", "import sys; print(*sys.argv[1:])")
    bursting = Bursting(job._scripts, "j", told, "local[3]", tmp_path / "burst.log", program)
    bursting.run_once()
    assert not (tmp_path / "burst.log").exists()

    assert store.decide("j", job.token, a_wish(job))
    for _ in range(3):
        bursting.run_once()
        wait_until(lambda: bursting._child is None or bursting._child.poll() is not None, "the command has ended")

    expected = "burst j flow.py --stage hop_1 --partitions 0,1 --behind 1 --asked-by the autoscaler --master local[3]\n"
    assert (tmp_path / "burst.log").read_text() == expected


def test_its_command_ends_with_the_node(job: LocalJob, tmp_path: Path) -> None:
    store = ScalingStore(job._scripts)
    store.configure("j", SCALING, 1)
    assert store.decide("j", job.token, a_wish(job))
    told = {"CELERIAC_REDIS": job.url, "CELERIAC_JOB": "j", "CELERIAC_PIPELINE": "flow.py"}
    program = (sys.executable, "-c", "import time; time.sleep(600)")
    bursting = Bursting(job._scripts, "j", told, "", tmp_path / "burst.log", program)
    bursting.run_once()
    child = bursting._child
    assert child is not None
    assert child.poll() is None
    stop = threading.Event()
    stop.set()

    bursting.run(stop)

    assert child.returncode == -15


def test_a_member_takes_the_pool_of_a_burst_and_the_offer_of_bursts() -> None:
    base = {
        "CELERIAC_REDIS": "redis://h",
        "CELERIAC_JOB": "j",
        "CELERIAC_PIPELINE": "flow.py",
        "CELERIAC_PROCESSES": "1",
    }

    member = MemberSettings.from_environment(
        {**base, "CELERIAC_POOL": "burst:here.burst-1", "CELERIAC_ENGINE": "spark"}
    )
    offering = MemberSettings.from_environment({**base, "CELERIAC_BURSTS": "1", "CELERIAC_STREAM_MASTER": "yarn"})

    assert is_burst_pool(member.pool)
    assert (member.bursts, member.spark) == (None, "")
    assert (offering.bursts, offering.spark) == ("yarn", None)
