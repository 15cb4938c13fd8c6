"""What a drained job publishes: never an empty result in the place of an earlier one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import Pipeline, read, write
from pipeline.cli.main import run_command
from pipeline.graph import SinkSpec
from pipeline.lifecycle import JobState
from pipeline.publishing import NOTHING_CAME, publish_job
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from pipeline.store.versions import VersionStore
from pipeline.versions import Version
from stages.publishing import ResultPublisher
from tests.runtime.harness import LocalJob

SINKS: dict[str, Callable[[str], SinkSpec]] = {
    "text": write.text,
    "jsonl": write.jsonl,
    "csv": write.csv,
    "parquet": write.parquet,
    "parquet by Spark": lambda path: write.parquet(path, writer="spark"),
    "delta": write.delta,
    "delta, overwritten": lambda path: write.delta(path, mode="overwrite"),
}


def a_job(redis_url: str, sink: SinkSpec, job: str) -> LocalJob:
    flow = Pipeline("flow")
    kept = flow.source(read.producer(), name="in").filter(lambda row: row["n"] > 0, name="kept")
    kept.sink(sink, name="out")
    return LocalJob(redis_url, flow, partitions=1, job=job)


def to_its_end(job: LocalJob, rows: list[Any], *, is_drained: bool) -> None:
    """All that is sent is processed, and the job is there to be published."""
    job.assign()
    job.send(rows)
    if is_drained:
        job.jobs.transition(job.job, JobState.DRAINING)
    job.run_to_the_end()
    job.jobs.transition(job.job, JobState.PUBLISHING)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("rows", [[], [{"n": 0}]], ids=["nothing read", "nothing left"])
def test_a_job_that_is_drained_before_anything_came_to_its_files_leaves_an_earlier_result_as_it_was(
    redis_url: str, tmp_path: Path, kind: str, rows: list[Any]
) -> None:
    sink = SINKS[kind](str(tmp_path / "out"))
    earlier = SINKS[kind.removesuffix(" by Spark")](str(tmp_path / "out"))
    with a_job(redis_url, earlier, "first") as first:
        to_its_end(first, [{"n": 1}], is_drained=False)
        publish_job(first.jobs, first.jobs.read("first"))
    before = content(tmp_path / "out")

    with a_job(redis_url, sink, "second") as second:
        to_its_end(second, rows, is_drained=True)
        assert publish_job(second.jobs, second.jobs.read("second")) == []

    assert before
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize("is_drained", [True, False])
def test_an_earlier_result_is_replaced_by_that_of_an_end_and_by_what_a_drain_has_left(
    redis_url: str, tmp_path: Path, is_drained: bool
) -> None:
    sink = write.jsonl(str(tmp_path / "out"))
    for job, rows, found in (("first", [{"n": 1}, {"n": 2}], 2), ("second", [{"n": 3}] * is_drained, int(is_drained))):
        with a_job(redis_url, sink, job) as site:
            to_its_end(site, rows, is_drained=is_drained)
            (published,) = publish_job(site.jobs, site.jobs.read(job))
        assert published.records == found


def test_parts_that_appeared_while_the_job_ran_get_their_manifest_when_it_is_drained(
    redis_url: str, tmp_path: Path
) -> None:
    with a_job(redis_url, write.jsonl(str(tmp_path / "out"), rotate_bytes=1), "rotates") as job:
        to_its_end(job, [{"n": 1}], is_drained=True)
        (published,) = publish_job(job.jobs, job.jobs.read("rotates"))

    assert (published.records, (tmp_path / "out/_manifest.json").exists()) == (1, True)


def test_a_job_that_was_drained_and_then_stopped_is_drained_still_when_it_goes_on_to_its_end(
    redis_url: str, tmp_path: Path
) -> None:
    with a_job(redis_url, write.text(str(tmp_path / "out")), "stops") as job:
        to_its_end(job, [], is_drained=True)
        assert job.jobs.read("stops").is_drained
        job.jobs.transition("stops", JobState.CANCELLED)
        job.jobs.transition("stops", JobState.RUNNING)

        assert not job.jobs.read("stops").is_drained  # until whoever goes on with it says so again


def test_members_finish_such_a_job_and_whoever_drains_it_is_told_why_it_has_no_result(
    redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_job(redis_url, write.jsonl(str(tmp_path / "out")), "j") as job:
        VersionStore(Scripts(job.client)).add("j", Version("submitted", "c", "f", "flow.py", "me"), submitted=True)
        to_its_end(job, [], is_drained=True)

        assert ResultPublisher(job.jobs, JobStore(Scripts(connect(redis_url))), "j").run_once()

        record = job.jobs.read("j")
        assert run_command(["drain", "j", "--redis", redis_url]) == 0
    assert capsys.readouterr().out == f"job j is drained, and finished: {NOTHING_CAME}\n"
    assert (record.state, record.reason) == (JobState.FINISHED, NOTHING_CAME)
    assert list(tmp_path.iterdir()) == []
