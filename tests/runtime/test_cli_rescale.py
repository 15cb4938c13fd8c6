"""`celeriac rescale`: what it begins, shows and refuses; the leader's duty behind it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import LocalJob, assert_sequence, numbered, sequence_pipeline

from leader.duties.placement import Placement
from leader.duties.rescaling import Rescaling
from pipeline.cli.exits import Exit
from pipeline.cli.main import run_command
from pipeline.lifecycle import JobState
from pipeline.settings import Limits
from pipeline.store.operations import OperationStore


@pytest.fixture
def job(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalJob]:
    monkeypatch.setenv("CELERIAC_REDIS", redis_url)
    with LocalJob(redis_url, sequence_pipeline(2), limits=Limits(lease_seconds=600.0, switch_records=10)) as job:
        yield job


def lead(job: LocalJob) -> dict[str, int]:
    """One round of a new leader's duty; workers are told."""
    job.worker().ownership.heartbeat("{}")
    placement = Placement(job._scripts, job.leader, lambda: job.leader.server, random.Random(1))
    duty = Rescaling(OperationStore(job._scripts), job.jobs.facts, placement)
    done = duty.run_once(job.jobs.facts("j"), job.token)
    job.plan = job.jobs.read("j").plan
    job.look()
    return done


def test_a_rescale_waits_for_a_short_backlog_switches_and_ends(
    job: LocalJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job.assign()
    job.send(numbered(["a", "b", "c", "d", "e"], 8))
    assert job.slice("w0", (0, 0)) is not None
    assert job.slice("w0", (0, 1)) is not None
    assert max(job.facts((1, number)).backlog for number in (0, 1)) > 10
    assert run_command(["rescale", "j", "hop_1", "--partitions", "5", "--no-wait"]) == 0
    assert capsys.readouterr().out == "begun; `celeriac status j` shows how far it is\n"

    assert lead(job) == {}
    assert run_command(["status", "j"]) == 0
    assert "operation rescale of hop_1, since 0 s, phase waiting: from 2 to 5 partitions" in capsys.readouterr().out
    job.run_until_idle()
    assert lead(job) == {"switched": 1}
    assert job.homeless() == []
    assert run_command(["status", "j", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["operation"]["phase"], shown["operation"]["before"], shown["operation"]["to"]) == ("settling", 2, 5)
    assert [stage["partitions"] for stage in shown["stages"]] == [2, 5, 2]
    job.run_until_idle()
    assert lead(job) == {"rescaled": 1}
    assert lead(job) == {}

    assert run_command(["history", "j"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("  rescale of hop_1 from 2 to 5 partitions: done")
    job.run_to_the_end()
    assert_sequence(job, "abcde", 8)


def test_one_that_is_urgent_does_not_wait(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.assign()
    job.send(numbered(["a", "b", "c", "d", "e"], 8))
    job.slice("w0", (0, 0))
    job.slice("w0", (0, 1))
    run_command(["rescale", "j", "hop_1", "--partitions", "1", "--no-wait"])
    assert lead(job) == {}

    assert run_command(["rescale", "j", "--now"]) == 0

    assert capsys.readouterr().out.endswith("the rescale of hop_1 from 2 to 1 partition waits no longer\n")
    assert lead(job) == {"switched": 1}
    assert run_command(["rescale", "j", "--cancel"]) == Exit.USAGE
    assert "too late" in capsys.readouterr().err
    job.run_until_idle()
    assert lead(job) == {"rescaled": 1}
    job.run_to_the_end()
    assert_sequence(job, "abcde", 8)


def test_one_that_waits_is_called_off(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    run_command(["rescale", "j", "hop_1", "--partitions", "3", "--no-wait"])

    assert run_command(["rescale", "j", "--cancel"]) == 0

    assert capsys.readouterr().out.endswith("the rescale of hop_1 from 2 to 3 partitions is called off\n")
    assert job.jobs.facts("j").operation is None
    run_command(["history", "j", "--json"])
    last = json.loads(capsys.readouterr().out)[-1]
    assert (last["operation"], last["outcome"], last["to"]) == ("rescale", "cancelled", 3)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [(JobState.DRAINING, "given up: the job is draining"), (None, "given up: the input of the stage is over")],
)
def test_a_leader_gives_up_what_can_not_be_done_any_more(job: LocalJob, state: JobState | None, outcome: str) -> None:
    job.assign()
    run_command(["rescale", "j", "hop_1", "--partitions", "3", "--no-wait"])
    if state is None:
        job.run_to_the_end()
    else:
        job.jobs.transition("j", state)

    assert lead(job) == {"rescales_given_up": 1}

    assert job.jobs.read("j").operations[-1].outcome == outcome


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hop_2", "--partitions", "3"], "error: job 'j' has no stage 'hop_2'\nhint: did you mean 'hop_1'?"),
        (["in", "--partitions", "3"], "error: 'in' is a source of job 'j'"),
        (["hop_1", "--partitions", "2"], "error: stage 'hop_1' of job 'j' has 2 partitions already"),
        (["hop_1", "--partitions", "257"], "257 is not in the range 1<=x<=256"),
        (["hop_1"], "name a stage, and give --partitions"),
        (["hop_1", "--cancel"], "--cancel takes the job alone"),
        (["--now"], "error: no operation of job 'j' is under way"),
        (["--cancel"], "error: no operation of job 'j' is under way"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(
    job: LocalJob, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run_command(["rescale", "j", *arguments]) == Exit.USAGE

    assert message in capsys.readouterr().err
    assert job.jobs.facts("j").operation is None


@pytest.mark.usefixtures("job")
def test_a_second_one_and_a_savepoint_are_told_what_keeps_the_job_busy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_command(["rescale", "j", "hop_1", "--partitions", "3", "--no-wait"])
    capsys.readouterr()

    assert run_command(["rescale", "j", "oracle_key", "--partitions", "3"]) == Exit.USAGE
    busy = "error: job 'j' is busy: rescale of hop_1, since 0 s, phase waiting"
    assert busy in capsys.readouterr().err
    assert run_command(["savepoint", "create", "j", "--to", str(tmp_path)]) == Exit.USAGE
    assert busy in capsys.readouterr().err


@pytest.mark.usefixtures("job")
def test_a_wait_has_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["rescale", "j", "hop_1", "--partitions", "3", "--wait", "0"]) == Exit.FAILED

    assert "is not through after 0 s: waiting: the longest inbox of hop_1 has 0 records" in capsys.readouterr().err
