"""Parts of a rotating sink appear while the job runs: whole, once, never changed, and committed."""

from __future__ import annotations

import csv
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline import Pipeline, read, write
from pipeline.errors import SinkError
from pipeline.graph import SinkSpec
from pipeline.lifecycle import JobState
from pipeline.publishing import check_targets, publish_job
from pipeline.settings import Limits
from pipeline.sinks.manifest import read_manifest
from pipeline.sinks.rotation import publish_part
from pipeline.store import keys
from stages.partition import SliceEnd
from tests.runtime.harness import HandClock, LocalJob, Moment, numbered
from tests.runtime.tables import KEYS, look_again
from tests.sampling import calls


def to(spec: SinkSpec) -> Pipeline:
    """[key, number] -> (key, number) of the sink `files`."""
    flow = Pipeline("rotation")
    keyed = flow.source(read.iterable([0]), name="in").key_by(lambda pair: pair[0], name="by")
    keyed.map(lambda pair: pair[1], name="number").sink(spec, name="files")
    return flow


def parts_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}


def rows_in(folder: Path) -> list[tuple[Any, Any]]:
    rows = [json.loads(line) for data in parts_in(folder).values() for line in data.splitlines()]
    return sorted([(row["key"], row["value"]) for row in rows], key=lambda row: (row[0], str(row[1]).zfill(3)))


class Watch:
    """Sees the parts of a folder again and again: none may change, or go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: dict[str, bytes] = {}

    def look(self) -> None:
        found = parts_in(self.folder)
        assert self.seen.items() <= found.items()
        self.seen = found


def feed(job: LocalJob, watch: Watch, rounds: int = 4) -> None:
    for number in range(rounds):
        job.send(numbered(KEYS, 3, first=3 * number + 1))
        job.run_and_sweep()
        watch.look()


def expected(rounds: int = 4) -> list[tuple[str, int]]:
    return sorted((key, number) for key, number in numbered(KEYS, 3 * rounds))


def test_parts_appear_while_the_job_runs_and_redis_and_the_disk_forget_them(redis_url: str, tmp_path: Path) -> None:
    watch = Watch(tmp_path / "out")
    with LocalJob(redis_url, to(write.jsonl(watch.folder, rotate_bytes=100)), partitions=1) as job:
        job.assign()
        feed(job, watch, 20)

        assert len(watch.seen) > 5
        assert all(len(data) >= 100 for data in watch.seen.values())
        assert rows_in(watch.folder) == [row for row in expected(20) if row in rows_in(watch.folder)]
        assert job.client.hlen(keys.files(job.job)) <= 2
        assert len(list((tmp_path / ".out.j.staging").iterdir())) <= 2

        job.run_to_the_end()
        for _ in range(2):
            (published,) = publish_job(job.jobs, job.jobs.read(job.job))
            watch.look()
        assert published.records == len(expected(20))
    assert rows_in(watch.folder) == expected(20)
    manifest = read_manifest(watch.folder)
    assert manifest is not None
    assert [part.name for part in manifest.files] == sorted(watch.seen)
    assert {path.name for path in watch.folder.iterdir()} == {*watch.seen, "_manifest.json"}


@pytest.mark.sampled
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_parts_are_exact_when_any_request_or_reply_is_lost(
    redis_url: str, tmp_path: Path, moment: Moment, is_restarted: bool
) -> None:
    for at in calls():
        watch = Watch(tmp_path / str(at))
        pipeline = to(write.jsonl(watch.folder, rotate_bytes=60))
        with LocalJob(redis_url, pipeline, partitions=1, job=f"j{at}", limits=Limits(step_records=4)) as job:
            job.worker()
            job.scripts["w0"].break_call(moment, at)
            look_again(job)
            job.assign(is_told=False)
            feed(job, watch, 3)
            total = len(job.scripts["w0"].calls)
            if is_restarted:
                job.restart("w0")
            feed_more(job, watch)
            job.end_input()
            job.run_and_sweep()
            publish_job(job.jobs, job.jobs.read(job.job))
            watch.look()

            assert rows_in(watch.folder) == expected(4)
            job.client.flushdb()
        if at > total:
            break
    assert at > 12


def feed_more(job: LocalJob, watch: Watch) -> None:
    job.send(numbered(KEYS, 3, first=10))
    job.run_and_sweep()
    watch.look()


def test_a_worker_that_dies_between_a_part_and_the_commit_that_forgets_it_doubles_nothing(
    redis_url: str, tmp_path: Path
) -> None:
    clock, watch = HandClock(), Watch(tmp_path / "out")
    pipeline = to(write.jsonl(watch.folder, rotate_seconds=10))
    with LocalJob(redis_url, pipeline, partitions=1, clock=clock) as job:
        job.assign()
        feed(job, watch, 2)
        clock.now += 10.0
        job.look()
        watch.look()
        assert rows_in(watch.folder) == expected(2)
        assert job.client.hlen(keys.files(job.job)) == 1

        job.restart("w0")
        for number in (2, 3):
            job.send(numbered(KEYS, 3, first=3 * number + 1))
            job.run_and_sweep()
            watch.look()
        assert job.client.hlen(keys.files(job.job)) == 1
        job.run_to_the_end()
        publish_job(job.jobs, job.jobs.read(job.job))
        watch.look()

    assert rows_in(watch.folder) == expected(4)


def test_an_idle_partition_publishes_when_the_time_has_come_and_not_before(redis_url: str, tmp_path: Path) -> None:
    clock, watch = HandClock(), Watch(tmp_path / "out")
    pipeline = to(write.jsonl(watch.folder, rotate_seconds=10))
    with LocalJob(redis_url, pipeline, partitions=1, clock=clock) as job:
        job.assign()
        feed(job, watch, 1)
        assert job.pauses() == [10.0]
        clock.now += 9.0
        job.look()
        assert parts_in(watch.folder) == {}

        clock.now += 1.0
        job.look()

        assert rows_in(watch.folder) == expected(1)
        assert job.pauses() == []


@pytest.mark.parametrize("is_unclean", [False, True])
def test_an_idle_partition_that_moves_takes_its_rows_along(redis_url: str, tmp_path: Path, is_unclean: bool) -> None:
    clock, watch = HandClock(), Watch(tmp_path / "out")
    pipeline = to(write.jsonl(watch.folder, rotate_seconds=10))
    with LocalJob(redis_url, pipeline, partitions=1, clock=clock) as job:
        job.assign()
        feed(job, watch, 1)
        assert parts_in(watch.folder) == {}

        job.assign("w1", [(1, 0)], is_unclean=is_unclean)
        job.run_until_idle()
        clock.now += 10.0
        job.look()

        assert rows_in(watch.folder) == expected(1)


def test_rows_of_a_step_that_waits_for_a_full_stream_are_in_no_part_yet(redis_url: str, tmp_path: Path) -> None:
    clock, watch = HandClock(), Watch(tmp_path / "out")
    flow = Pipeline("held")
    stream = flow.source(read.iterable([0]), name="in").map(lambda number: {"key": "a", "value": number}, name="row")
    stream.sink(write.jsonl(watch.folder, rotate_seconds=10), name="files")
    stream.sink(write.stream("slow"), name="slow")
    with LocalJob(redis_url, flow, partitions=1, limits=Limits(inbox_records=2), clock=clock) as job:
        job.assign()
        for number in range(8):
            job.send([number])
            while job.pop_ticket((0, 0)):
                end = job.slice("w0", (0, 0))
            if end is SliceEnd.FULL:
                break
        committed = job.facts((0, 0)).taken
        assert 0 < committed <= number

        clock.now += 60.0
        job.look()
        watch.look()

        assert rows_in(watch.folder) in ([], [("a", each) for each in range(committed)])
        job.drain_outputs()
        job.run_until_idle()
        clock.now += 60.0
        job.look()
        job.run_to_the_end()
        publish_job(job.jobs, job.jobs.read(job.job))
        watch.look()
    assert rows_in(watch.folder) == [("a", each) for each in range(number + 1)]


def test_rows_that_no_commit_names_are_in_no_part(redis_url: str, tmp_path: Path) -> None:
    watch = Watch(tmp_path / "out")
    with LocalJob(redis_url, to(write.jsonl(watch.folder, rotate_bytes=1)), partitions=1) as job:
        job.assign()
        feed(job, watch, 1)
        job.send(numbered(KEYS, 3, first=4))
        while job.pop_ticket((0, 0)):
            job.slice("w0", (0, 0))
        # Its commit is lost when the rows are on the disk, and it is replaced: it may still write into its file.
        job.scripts["w0"].break_call("before", 2)
        job.run_until_idle()
        job.assign("w1", [(1, 0)], is_unclean=True)
        job.run_and_sweep()
        feed_tail(job, watch)

    assert rows_in(watch.folder) == expected(3)


def feed_tail(job: LocalJob, watch: Watch) -> None:
    job.send(numbered(KEYS, 3, first=7))
    job.run_and_sweep()
    job.end_input()
    job.run_and_sweep()
    publish_job(job.jobs, job.jobs.read(job.job))
    watch.look()


@pytest.mark.parametrize("kind", ["text", "csv"])
def test_text_and_csv_rotate_as_well(redis_url: str, tmp_path: Path, kind: str) -> None:
    watch = Watch(tmp_path / "out")
    flow = Pipeline("rows")
    values = [{"a": number, "b": 'two\nlines, and a "quote"'} for number in range(30)]
    spec = write.csv(watch.folder, rotate_bytes=80) if kind == "csv" else write.text(watch.folder, rotate_bytes=80)
    flow.source(read.iterable([0]), name="in").sink(spec, name="files")
    with LocalJob(redis_url, flow, partitions=1) as job:
        job.assign()
        for value in values:
            job.send([value])
            job.run_until_idle()
            watch.look()
        assert len(watch.seen) > 5
        job.run_to_the_end()
        (published,) = publish_job(job.jobs, job.jobs.read(job.job))
        assert published.records == len(values)

    found = []
    for data in parts_in(watch.folder).values():
        if kind == "csv":
            found += [{**row, "a": int(row["a"])} for row in csv.DictReader(data.decode().splitlines(keepends=True))]
        else:
            found += [json.loads(line) for line in data.splitlines()]
    assert found == values


def test_a_part_that_is_gone_is_noticed_at_the_end(redis_url: str, tmp_path: Path) -> None:
    watch = Watch(tmp_path / "out")
    with LocalJob(redis_url, to(write.jsonl(watch.folder, rotate_bytes=1)), partitions=1) as job:
        job.assign()
        feed(job, watch, 4)
        job.run_to_the_end()
        next(watch.folder.glob("part-*")).unlink()

        with pytest.raises(SinkError, match="and 36 were committed"):
            publish_job(job.jobs, job.jobs.read(job.job))
    assert read_manifest(watch.folder) is None


def test_a_folder_with_parts_of_another_run_is_not_written_to(redis_url: str, tmp_path: Path) -> None:
    watch = Watch(tmp_path / "out")
    pipeline = to(write.jsonl(watch.folder, rotate_bytes=1))
    with LocalJob(redis_url, pipeline, partitions=1) as job:
        job.assign()
        feed(job, watch, 2)
        before = watch.seen
        job.client.flushdb()
    with LocalJob(redis_url, pipeline, partitions=1) as job:
        job.assign()
        job.send(numbered(KEYS, 3))
        job.run_until_idle()

        record = job.jobs.read(job.job)
        assert record.state is JobState.FAILED
        assert "holds parts of another run" in record.reason
    assert parts_in(watch.folder) == before


def test_a_finished_result_is_not_added_to(redis_url: str, tmp_path: Path) -> None:
    watch = Watch(tmp_path / "out")
    with LocalJob(redis_url, to(write.jsonl(watch.folder, rotate_bytes=1)), partitions=1) as job:
        check_targets(job.plan)
        job.assign()
        feed(job, watch, 2)
        check_targets(job.plan)
        job.run_to_the_end()
        publish_job(job.jobs, job.jobs.read(job.job))

        with pytest.raises(SinkError, match="holds a finished result"):
            check_targets(job.plan)


def test_a_full_disk_fails_the_job_with_whole_parts_and_it_goes_on_when_there_is_room(
    redis_url: str, tmp_path: Path
) -> None:
    watch = Watch(tmp_path / "out")
    with LocalJob(redis_url, to(write.jsonl(watch.folder, rotate_bytes=100)), partitions=1) as job:
        job.assign()
        feed(job, watch, 3)
        with files_of_at_most(150):
            job.send([["a", "x" * 400]])
            job.run_until_idle()
        record = job.jobs.read(job.job)
        assert record.state is JobState.FAILED
        assert "cannot write" in record.reason
        watch.look()

        job.jobs.transition(job.job, JobState.RUNNING)
        job.restart("w0")
        job.assign("w0")
        job.run_and_sweep()
        job.end_input()
        job.run_and_sweep()
        publish_job(job.jobs, job.jobs.read(job.job))
        watch.look()

    assert [row for row in rows_in(watch.folder) if row[1] != "x" * 400] == expected(3)
    assert ("a", "x" * 400) in rows_in(watch.folder)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As a disk that is full: the system refuses to write beyond."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_part_that_takes_long_to_make_is_no_record_that_holds_its_worker_up(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock()
    reports: list[dict[str, Any]] = []
    longest: list[str] = []

    def slow(*args: Any, **options: Any) -> None:
        publish_part(*args, **options)
        clock.now += 100.0
        look()

    def look() -> None:
        reports.append(job.workers["w0"].hand.report(clock.now))
        longest.append(job.workers["w0"].hand.held_longer(clock.now, 60.0))

    monkeypatch.setattr("stages.files.publish_part", slow)
    with LocalJob(
        redis_url,
        to(write.csv(tmp_path / "out", rotate_bytes=60)),
        partitions=1,
        clock=clock,
        limits=Limits(step_records=4),
    ) as job:
        job.assign()
        feed(job, Watch(tmp_path / "out"))

        assert len(longest) > 2
        assert set(longest) == {""}
        during = [report for report in reports if report["hand"]]
        assert {hand["why"] for report in during for hand in report["hand"].values()} == {"publishing"}
        assert all(report["slices"] == ["1.0"] for report in during)
        assert during
