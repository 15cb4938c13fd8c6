"""A suspended job has nothing in flight, and goes on; a stage that is paused stands still, and loses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from leader.roster import comes_back
from pipeline import Pipeline, count, read, write
from pipeline.cli.exits import JobFailed
from pipeline.cli.main import run_command
from pipeline.cli.openings import go_on
from pipeline.cli.reports import undrained
from pipeline.cli.suspending import suspend_job
from pipeline.errors import (
    InboxClosed,
    InboxFull,
    JobStateError,
    NotQuiet,
    SavepointError,
    SourcePaused,
    StoreUnavailable,
    UnknownJob,
)
from pipeline.facts import waiting_for
from pipeline.lifecycle import JobState
from pipeline.savepoints.export import take_savepoint
from pipeline.savepoints.places import LocalPlace
from pipeline.savepoints.reading import Savepoint
from pipeline.settings import Limits
from stages.partition import SliceEnd
from tests.runtime.harness import FlakyScripts, LocalJob, Moment


def counting() -> Pipeline:
    flow = Pipeline("words")
    words = flow.source(read.producer(), name="in").key_by(str, name="by_word")
    words.aggregate(count(), name="counts").sink(write.stream("out"), name="out")
    return flow


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with LocalJob(redis_url, counting()) as made:
        made.assign()
        yield made


def suspend(job: LocalJob, folder: Path, wait: float = 30.0, sleep: Callable[[float], Any] | None = None) -> Savepoint:
    """Suspends the job, which works whenever the command waits."""
    record = job.jobs.read(job.job)
    work = sleep or (lambda _: job.run_until_idle())
    suspend_job(job._scripts, record, LocalPlace(folder), "s", wait, work)
    return Savepoint(LocalPlace(folder), "s")


# suspend and resume


def test_a_job_is_suspended_when_all_that_it_has_taken_is_processed(job: LocalJob, tmp_path: Path) -> None:
    job.send("aab")

    savepoint = suspend(job, tmp_path)

    assert savepoint.manifest.in_flight == 0
    assert savepoint.manifest.keys == {"counts": 2}
    record = job.jobs.read("j")
    assert (record.state, record.reason) == (JobState.SUSPENDED, "suspended with the savepoint s")
    assert job.by_key() == {"a": [1, 2], "b": [1]}
    with pytest.raises(InboxClosed):
        job.send("c")


def test_the_cut_itself_refuses_while_anything_is_in_flight(job: LocalJob, tmp_path: Path) -> None:
    """Whatever was seen a moment before: a stage may have handed records on since."""
    job.send("a")
    record = job.jobs.read("j")
    entry = next(place for place in job.places if job.facts(place).backlog)
    with pytest.raises(NotQuiet):
        take_savepoint(job._scripts, record, LocalPlace(tmp_path), "s", ends=JobState.SUSPENDED)
    assert job.pop_ticket(entry)
    job.slice("w0", entry)
    assert [part.stage for part in job.jobs.facts("j").partitions if part.backlog] == [1]
    with pytest.raises(NotQuiet):
        take_savepoint(job._scripts, record, LocalPlace(tmp_path), "s", ends=JobState.SUSPENDED)
    assert job.jobs.state("j") is JobState.RUNNING

    job.run_until_idle()

    take_savepoint(job._scripts, record, LocalPlace(tmp_path), "s", ends=JobState.SUSPENDED)
    assert job.jobs.state("j") is JobState.SUSPENDED


def test_one_that_is_not_quiet_in_time_is_said_with_its_partitions_and_goes_on(job: LocalJob, tmp_path: Path) -> None:
    job.send(["a", "b", "c"])

    with pytest.raises(JobFailed) as caught:
        suspend(job, tmp_path, 0.0)

    place = next(place for place in job.places if job.facts(place).backlog)
    message = f"job j is not quiet after 0 s: stage 'in' partition {place[1]} has 3 records"
    assert str(caught.value).startswith(message)
    assert (job.jobs.state("j"), job.jobs.read("j").paused) == (JobState.RUNNING, {})
    job.send("d")
    job.run_until_idle()
    assert job.by_key() == {"a": [1], "b": [1], "c": [1], "d": [1]}
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_was_paused_before_stays_paused_when_suspending_fails(job: LocalJob, tmp_path: Path) -> None:
    job.send("a")
    job.jobs.pause(job.jobs.read("j"), "in", is_paused=True)

    with pytest.raises(JobFailed):
        suspend(job, tmp_path, 0.0)

    assert set(job.jobs.read("j").paused) == {"in"}


def test_a_source_that_is_paused_while_suspending_waits_stays_paused_when_that_fails(
    job: LocalJob, tmp_path: Path
) -> None:
    job.send("a")
    told: list[bool] = []

    def pause(_: float) -> None:
        told.append(job.jobs.pause(job.jobs.read("j"), "in", is_paused=True))

    with pytest.raises(JobFailed):
        suspend(job, tmp_path, 0.5, sleep=pause)

    assert told[0]
    assert set(job.jobs.read("j").paused) == {"in"}


def test_a_job_that_is_not_told_that_it_goes_on_is_suspended_still_and_resume_has_it_go_on(
    job: LocalJob, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CELERIAC_REDIS", redis_url)
    scripts = FlakyScripts(job.client)
    place = LocalPlace(tmp_path)

    def broken(*_: object) -> None:
        scripts.spared = frozenset({"uncut", "pause"})
        scripts.break_call("before")
        raise SavepointError("the disk is full")

    place.begin = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(SavepointError, match="the disk is full"):
        suspend_job(scripts, job.jobs.read("j"), place, "s", 30.0, lambda _: job.run_until_idle())

    record = job.jobs.read("j")
    assert (record.state, record.paused) == (JobState.SUSPENDED, {})
    assert "or celeriac resume j when" in capsys.readouterr().err
    assert run_command(["resume", "j"]) == 0
    job.send("a")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_input_flows_when_the_answer_to_its_being_held_back_was_lost(
    job: LocalJob, tmp_path: Path, moment: Moment
) -> None:
    scripts = FlakyScripts(job.client)
    scripts.break_call(moment)

    with pytest.raises(StoreUnavailable):
        suspend_job(scripts, job.jobs.read("j"), LocalPlace(tmp_path), "s", 30.0)

    assert job.jobs.read("j").paused == {}
    job.send("a")


def test_nothing_new_is_taken_while_the_command_waits(job: LocalJob, tmp_path: Path) -> None:
    job.send("a")
    refused: list[Exception] = []

    def meanwhile(_: float) -> None:
        with pytest.raises(SourcePaused) as caught:
            job.send("b")
        refused.append(caught.value)
        job.run_until_idle()

    suspend(job, tmp_path, sleep=meanwhile)

    assert len(refused) == 1


def test_a_suspended_job_goes_on_in_its_place_with_the_same_senders(job: LocalJob, tmp_path: Path) -> None:
    job.send("aab")
    suspend(job, tmp_path)

    go_on(job.jobs, job.jobs.read("j"))
    job.assign()
    job.send("a")

    job.run_to_the_end()
    assert job.by_key() == {"a": [1, 2, 3], "b": [1]}


@pytest.mark.parametrize("partitions", [2, 5])
def test_another_job_goes_on_from_its_savepoint(job: LocalJob, redis_url: str, tmp_path: Path, partitions: int) -> None:
    job.send("aab")
    savepoint = suspend(job, tmp_path)

    with LocalJob(redis_url, counting(), job="k", savepoint=savepoint, partitions=partitions) as other:
        other.assign()
        other.send("ab", split="b")
        other.run_to_the_end()
        assert other.by_key() == {"a": [3], "b": [2]}
        assert other.jobs.read("k").generation == 1


def test_a_job_whose_savepoint_cannot_be_written_goes_on(job: LocalJob, tmp_path: Path) -> None:
    job.send("a")
    place = LocalPlace(tmp_path)
    record = job.jobs.read("j")

    def broken(*_: object) -> None:
        raise SavepointError("the disk is full")

    place.begin = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(SavepointError, match="the disk is full"):
        suspend_job(job._scripts, record, place, "s", 30.0, lambda _: job.run_until_idle())

    record = job.jobs.read("j")
    assert (record.state, record.paused, record.saving) == (JobState.RUNNING, {}, 0)
    job.assign()
    job.send("a")
    job.run_until_idle()
    assert job.by_key() == {"a": [1, 2]}


def test_who_stops_a_job_with_a_savepoint_that_cannot_be_written_is_told_that_it_is_stopped_and_can_save_it_then(
    job: LocalJob, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job.send("aab")
    job.run_until_idle()
    create = ("savepoint", "create", "j", "--redis", redis_url, "--to")

    def begin(*_: object) -> None:
        raise SavepointError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(LocalPlace, "begin", begin)
        assert run_command([*create, str(tmp_path / "saved"), "--stop"]) == 2
        told = capsys.readouterr().err

        assert job.jobs.state("j") is JobState.CANCELLED
        assert told.startswith("warning: job j is cancelled, without a savepoint. Redis keeps all of it: ")
        assert run_command([*create, str(tmp_path / "saved")]) == 2
        assert "warning" not in capsys.readouterr().err
    assert run_command([*create, str(tmp_path / "saved"), "--stop"]) == 2  # it is stopped
    assert "warning" not in capsys.readouterr().err
    assert run_command([*create, str(tmp_path / "saved")]) == 0
    (name,) = LocalPlace(tmp_path / "saved").names()
    assert Savepoint(LocalPlace(tmp_path / "saved"), name).manifest.keys == {"counts": 2}


def test_a_suspended_job_may_be_saved_again_but_not_paused_or_drained(
    job: LocalJob, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CELERIAC_REDIS", redis_url)
    suspend(job, tmp_path / "one")

    assert suspend(job, tmp_path / "other").manifest.in_flight == 0
    record = job.jobs.read("j")
    with pytest.raises(JobStateError, match="is suspended"):
        job.jobs.pause(record, "in", is_paused=True)
    with pytest.raises(JobStateError, match="is suspended"):
        job.jobs.transition("j", JobState.DRAINING)
    for verb in ("pause", "unpause"):
        assert run_command([verb, "j"]) == 2
        assert "'j' is suspended: it takes no input any more\nhint: `celeriac resume j`" in capsys.readouterr().err
    assert job.jobs.read("j").paused


def test_only_a_running_job_is_suspended_and_only_a_suspended_one_resumed(
    job: LocalJob, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CELERIAC_REDIS", redis_url)
    monkeypatch.chdir(tmp_path)
    assert run_command(["resume", "j"]) == 2
    assert "job 'j' is running, not suspended" in capsys.readouterr().err

    assert run_command(["suspend", "j", "--savepoint", "s", "--to", "kept"]) == 0
    assert capsys.readouterr().out.startswith("job j is suspended; savepoint ")
    assert (tmp_path / "kept" / "s" / "manifest.json").exists()
    assert run_command(["resume", "j"]) == 0
    assert capsys.readouterr().out == "job j goes on\n"

    job.jobs.transition("j", JobState.DRAINING)
    assert run_command(["suspend", "j"]) == 2
    assert "job 'j' is draining: only a running job can be suspended" in capsys.readouterr().err
    assert run_command(["suspend", "j", "--savepoint", "../s"]) == 2
    job.jobs.transition("j", JobState.CANCELLED)


# a stage


def still(job: LocalJob, stage: str = "by_word", *, is_paused: bool = True) -> bool:
    return job.jobs.pause_stage(job.jobs.read("j"), stage, is_paused=is_paused)


def test_a_paused_stage_takes_nothing_and_goes_on_at_once(job: LocalJob) -> None:
    assert still(job)
    job.look()
    job.send("aab")
    job.run_until_idle()
    assert job.values() == []
    assert sum(part.backlog for part in job.jobs.facts("j").partitions if part.stage == 1) == 3

    assert still(job, is_paused=False)
    job.look()
    job.run_until_idle()

    assert job.by_key() == {"a": [1, 2], "b": [1]}


def test_a_paused_stage_is_not_rung_again_and_not_stuck(job: LocalJob) -> None:
    still(job)
    job.look()
    job.send("ab")
    job.run_until_idle()

    hand = job.workers["w0"].hand.report(1e9)
    names = {name for name, each in hand["hand"].items() if each["why"] == "paused"}
    assert names == {part.name for part in job.jobs.facts("j").partitions if part.stage == 1 and part.backlog}
    assert job.workers["w0"].hand.held_longer(1e9, 1.0) == ""
    job.workers["w0"].ownership.heartbeat(json.dumps(hand))
    worker = job.jobs.facts("j").workers[0]
    assert names <= comes_back(worker)


def test_a_new_owner_of_a_paused_stage_stands_still_too(job: LocalJob) -> None:
    still(job)
    job.send("ab")
    job.worker("w1")
    job.assign("w1")
    job.run_until_idle()
    assert job.values() == []

    still(job, is_paused=False)
    job.look()
    job.run_until_idle()

    assert sorted(job.by_key()) == ["a", "b"]


def test_a_worker_that_takes_tickets_by_itself_leaves_those_of_a_paused_stage(redis_url: str) -> None:
    with LocalJob(redis_url, counting(), takes_tickets=True) as job:
        job.assign()
        still(job)
        job.look()
        job.send("aab")
        job.run_until_idle()
        assert job.values() == []
        still(job, is_paused=False)
        job.look()
        job.run_and_sweep()
        assert job.by_key() == {"a": [1, 2], "b": [1]}


def test_what_is_before_a_paused_stage_waits_when_its_inboxes_are_full(redis_url: str) -> None:
    with LocalJob(redis_url, counting(), limits=Limits(inbox_records=5, step_records=2)) as job:
        job.assign()
        still(job)
        job.look()
        with suppress(InboxFull):
            for _ in range(20):
                job.send("aa")
                job.run_until_idle()
        assert job.lane().taken < 40
        facts = job.jobs.facts("j")
        assert SliceEnd.FULL in {end for _, _, end in job.ends}
        assert "w" in {part.ring for part in facts.partitions if part.stage == 0}

        still(job, is_paused=False)
        job.look()
        job.run_and_sweep()

        assert job.by_key() == {"a": list(range(1, job.lane().taken + 1))}


def test_a_paused_stage_is_said_by_whoever_waits_for_it(job: LocalJob, tmp_path: Path) -> None:
    job.send("ab")
    job.run_until_idle()
    still(job)
    job.look()
    job.send("c")
    job.run_until_idle()
    words = "stage by_word: paused; `celeriac unpause j --stage by_word` lets it go on"

    assert words in waiting_for(job.jobs.facts("j"))
    with pytest.raises(JobFailed, match="has 1 record; stage 'by_word' is paused; `celeriac unpause j --stage"):
        suspend(job, tmp_path, 0.0)
    job.end_input()
    assert "stage 'by_word' is paused; `celeriac unpause j --stage by_word`" in undrained(job.jobs.facts("j"))


def test_pausing_a_stage_by_command(
    job: LocalJob, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CELERIAC_REDIS", redis_url)

    def say(*arguments: str) -> tuple[int, str, str]:
        code = run_command(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    assert say("pause", "j", "--stage", "by_word")[:2] == (0, "stage by_word of job j is paused\n")
    assert say("pause", "j", "--stage", "by_word")[1] == "stage by_word of job j is paused already\n"
    assert "still     stage by_word: paused; `celeriac unpause j --stage by_word`" in say("status", "j")[1]
    assert say("unpause", "j", "--stage", "by_word")[1] == "stage by_word of job j is not paused\n"
    assert say("unpause", "j", "--stage", "by_word")[1] == "stage by_word of job j was not paused\n"
    code, _, error = say("pause", "j", "--stage", "by_wrd")
    assert (code, error.splitlines()[0]) == (2, "error: job 'j' has no stage 'by_wrd'")
    assert say("pause", "j", "in", "--stage", "by_word")[0] == 2
    job.jobs.transition("j", JobState.CANCELLED)
    assert "none of its stages works" in say("pause", "j", "--stage", "by_word")[2]
    record = job.jobs.read("j")
    job.jobs.erase("j")
    with pytest.raises(UnknownJob):
        job.jobs.pause_stage(record, "by_word", is_paused=True)
