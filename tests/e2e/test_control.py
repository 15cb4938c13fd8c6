"""`celeriac drain`, `pause`, `unpause` and `history`, against a running job and against one that nobody works at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import Pipeline, read, write
from pipeline.cli.main import run_command
from pipeline.errors import SourcePaused
from pipeline.lifecycle import JobState
from pipeline.producer import Producer
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from tests.e2e.chaos import Run, Site, wait_until
from tests.runtime.harness import LocalJob

FLOW = """
from pipeline import Pipeline, count, read, write

flow = Pipeline("shop")
events = flow.source(read.producer(with_keys=True), name="events")
users = events.key_by("key", name="by_user").aggregate(count(), name="n").last(name="last")
users.sink(write.jsonl("out"), name="result")
"""


@pytest.fixture
def job(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalJob]:
    """Nobody works at it but by hand."""
    monkeypatch.setenv("CELERIAC_REDIS", redis_url)
    flow = Pipeline("flow")
    flow.source(read.producer(), name="in").key_by(str, name="by").sink(write.stream("out"), name="out")
    with LocalJob(redis_url, flow, partitions=2) as made:
        made.assign()
        yield made


def say(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    code = run_command(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_running_job_is_paused_goes_on_and_is_drained_by_commands(site: Site, redis_url: str) -> None:
    site.write(FLOW)
    run = site.start("flow.py", "--workers", "1", "--redis", redis_url, "--job-id", "j")
    jobs = JobStore(Scripts(connect(redis_url)))
    wait_until(lambda: "j" in jobs.list_ids(), "the job is registered")

    with Producer("j", redis_url, full_timeout_seconds=0.2) as producer:
        for number in range(700):
            producer.send(f"user-{number % 7}", number)
        producer.flush()
        assert site.command("pause", "j", "--redis", redis_url).stdout == "source events of job j is paused\n"
        producer.send("user-0", 700)
        with pytest.raises(SourcePaused, match=r"1 record not taken within 0\.2 s: the source 'events'"):
            producer.flush()
        status = site.command("status", "j", "--redis", redis_url).stdout
        assert "waiting   events: paused; `celeriac unpause j events` lets it go on" in status
        unpaused = site.command("unpause", "j", "events", "--redis", redis_url)
        assert unpaused.stdout == "source events of job j is not paused\n"
        producer.flush(30)

    drained = site.command("drain", "j", "--redis", redis_url)
    run.finish(code=130)
    assert (drained.returncode, drained.stdout) == (0, "job j is drained, and finished\n")
    assert sorted(rows(run)) == [("user-0", 101), *((f"user-{n}", 100) for n in range(1, 7))]
    lines = site.command("history", "j", "--redis", redis_url).stdout.splitlines()
    assert [line.split("  ")[1:] for line in lines if "  version " not in line] == [
        ["running"],
        ["draining", "celeriac drain"],
        ["publishing"],
        ["finished"],
    ]


def rows(run: Run) -> list[tuple[str, int]]:
    text = "".join(path.read_text() for path in (run.folder / "out").glob("part-*"))
    return [(row["key"], row["value"]) for row in map(json.loads, text.splitlines())]


def test_a_job_that_is_not_drained_in_time_is_said_with_its_partitions_and_loses_nothing(
    job: LocalJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job.send(["a", "b", "c"])

    code, _, errors = say(capsys, "drain", "j", "--wait", "0")

    assert code == 1
    place = next(place for place in job.places if job.facts(place).backlog)
    first, hint = errors.splitlines()
    assert first.startswith(
        f"error: job j is not drained after 0 s: stage 'in' partition {place[1]} has 3 records; stage 'in' partition "
    )
    assert first.count("has not met its end") == 3
    assert hint == "hint: it goes on; `celeriac drain j` waits again, `celeriac status j` shows more"
    assert job.jobs.state("j") is JobState.DRAINING
    job.run_to_the_end()
    assert sorted(job.values()) == ["a", "b", "c"]
    job.jobs.transition("j", JobState.PUBLISHING)
    _, _, errors = say(capsys, "drain", "j", "--wait", "0")
    assert "all is processed, and its results wait for the process that runs it to publish them" in errors
    job.jobs.transition("j", JobState.FINISHED)
    assert say(capsys, "drain", "j")[:2] == (0, "job j is drained, and finished\n")


def test_what_ended_otherwise_is_not_called_drained(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    job.jobs.transition("j", JobState.FAILED, "its disk is full")

    assert say(capsys, "drain", "j")[::2] == (2, "error: job 'j' is failed: its disk is full\n")


def test_what_cannot_be_paused_is_said(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert say(capsys, "pause", "j", "im")[::2] == (2, "error: job 'j' has no source 'im'\nhint: there are: in\n")
    assert say(capsys, "pause", "j")[1] == "source in of job j is paused\n"
    assert say(capsys, "pause", "j")[1] == "source in of job j is paused already\n"
    assert say(capsys, "unpause", "k")[0] == 2
    job.jobs.transition("j", JobState.CANCELLED, "enough")
    code, _, errors = say(capsys, "unpause", "j")
    assert (code, errors) == (2, "error: job 'j' is cancelled: it takes no input any more\n")
    assert json.loads(say(capsys, "history", "j", "--json")[1])[-1]["reason"] == "enough"


def test_ctrl_c_ends_the_wait_and_the_job_drains_on(job: LocalJob, redis_url: str, tmp_path: Path) -> None:
    job.send(["a"])
    waiting = subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli.main", "drain", "j"],
        env={**os.environ, "CELERIAC_REDIS": redis_url},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: job.jobs.state("j") is JobState.DRAINING, "the job drains")
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=30)

    assert waiting.returncode == 130
    assert "Traceback" not in errors
    job.run_to_the_end()
    assert job.values() == ["a"]
