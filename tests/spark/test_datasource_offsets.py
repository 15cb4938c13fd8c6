"""The named reader of a streaming query, asked by hand as Spark asks it: offsets, limits, commits, and every loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from pipeline.errors import JobRestored, ReadingError, StaleReader, TailLost, UnknownJob
from pipeline.lifecycle import JobState
from pipeline.spark.datasource.options import Use, parse
from pipeline.spark.datasource.results import ResultReader, ResultStream
from pipeline.store import keys
from pipeline.store.outputs import remove_reader
from pipeline.store.scripts import Scripts
from tests.runtime.harness import LocalJob
from tests.spark.frames import a_job

SCHEMA = StructType([StructField("position", LongType())])
ALL = ReadAllAvailable()


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with a_job(redis_url) as made:
        yield made


def a_stream(job: LocalJob, **options: str) -> ResultStream:
    given = {"redis": job.url, "job": "j", "stream": "out", "reader": "r", **options}
    return ResultStream(parse(given, Use.STREAM), SCHEMA)


def fill(job: LocalJob, count: int, entry_records: int = 10) -> None:
    """In entries of the output of so many results."""
    for first in range(0, count, entry_records):
        job.send([{"n": n} for n in range(first, min(count, first + entry_records))])
        job.run_until_idle()


def positions(stream: Any, parts: Any) -> list[int]:
    return [number for part in parts for batch in stream.read(part) for number in batch.column(0).to_pylist()]


def batch(stream: ResultStream, start: Any, end: Any) -> list[int]:
    return positions(stream, stream.partitions(start, end))


def kept(job: LocalJob) -> tuple[int, int]:
    """The numbers of the oldest result that is kept, and of the next one that the reader has not passed."""
    [out] = [each for each in job.jobs.facts("j").outputs if each.name == "out"]
    [reader] = [each for each in out.readers if each.name == "r"]
    return out.oldest, reader.next_number


def test_a_batch_goes_as_far_as_the_limit_and_no_further_than_there_is(job: LocalJob) -> None:
    fill(job, 25)
    stream = a_stream(job, max_records="10")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(10)
    offsets = [stream.initialOffset()]
    for _ in range(4):
        offsets.append(stream.latestOffset(offsets[-1], limit))

    assert [offset["next"] for offset in offsets] == [1, 11, 21, 26, 26]
    assert offsets[4] == offsets[3]
    assert batch(stream, offsets[0], offsets[1]) == list(range(1, 11))
    assert batch(stream, offsets[1], offsets[3]) == list(range(11, 26))
    assert stream.partitions(offsets[3], offsets[4]) == []
    assert stream.latestOffset(offsets[0], ALL)["next"] == stream.reportLatestOffset()["next"] == 26


def test_available_now_ends_where_the_stream_ended_when_it_began(job: LocalJob) -> None:
    fill(job, 5)
    stream = a_stream(job)
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    fill(job, 5)

    end = stream.latestOffset(start, ALL)

    assert end["next"] == 6
    assert stream.latestOffset(end, ALL) == end


@pytest.mark.parametrize("tasks", ["1", "3", "100"])
def test_tasks_share_the_results_wherever_entries_are_cut(job: LocalJob, tasks: str) -> None:
    fill(job, 40, entry_records=7)
    stream = a_stream(job, partition_records=tasks)
    start = stream.initialOffset()

    for first, stop in ((1, 41), (4, 30), (7, 8)):
        numbers = batch(stream, {**start, "next": first}, {**start, "next": stop})
        assert numbers == list(range(first, stop))


def test_a_commit_lets_go_of_what_is_in_front_of_it_only(job: LocalJob) -> None:
    fill(job, 40)
    stream = a_stream(job)
    start = stream.initialOffset()
    for number in (11, 15, 15, 12, 41):
        stream.commit({**start, "next": number})
        reached = max(15 if number == 12 else number, 1)
        assert kept(job)[1] == reached
        assert kept(job)[0] <= reached
        if reached < 41:
            assert batch(stream, {**start, "next": reached}, {**start, "next": 41}) == list(range(reached, 41))


def test_another_session_goes_on_where_the_checkpoint_is_or_the_reader_stands(job: LocalJob) -> None:
    fill(job, 20)
    stream = a_stream(job)
    start = stream.initialOffset()
    stream.commit({**start, "next": 6})
    stream.stop()

    again = a_stream(job, start="end")
    assert again.initialOffset()["next"] == 6  # known: `start` is for new readers
    assert batch(again, {**start, "next": 6}, {**start, "next": 21}) == list(range(6, 21))
    assert a_stream(job, reader="other", start="end").initialOffset()["next"] == 21
    assert a_stream(job, reader="third", start="9").initialOffset()["next"] == 9


def test_a_reader_that_was_removed_comes_back_if_nothing_is_lost_and_is_an_error_if_something_is(job: LocalJob) -> None:
    fill(job, 20)
    start = a_stream(job).initialOffset()
    remove_reader(Scripts(job.client), "j", "out", "r", job.limits)
    assert a_stream(job).latestOffset({**start, "next": 5}, ALL)["next"] == 21
    assert kept(job)[1] == 5

    a_stream(job).commit({**start, "next": 21})

    for call in (
        lambda: a_stream(job).latestOffset({**start, "next": 5}, ALL),
        lambda: a_stream(job).partitions({**start, "next": 5}, {**start, "next": 21}),
    ):
        with pytest.raises(StaleReader, match=r"results 5 to 20 of 'out' are gone: reader 'r' was removed"):
            call()


def test_results_that_are_trimmed_while_a_task_reads_fail_it(job: LocalJob) -> None:
    fill(job, 20)
    stream = a_stream(job)
    start = stream.initialOffset()
    parts = stream.partitions(start, {**start, "next": 21})

    remove_reader(Scripts(job.client), "j", "out", "r", job.limits)
    a_stream(job, reader="other").commit({**start, "next": 11})

    with pytest.raises(StaleReader, match="results 1 to 10 of 'out' are gone: they were trimmed while they were read"):
        positions(stream, parts)


def test_a_job_that_was_removed_or_made_anew_is_no_longer_read(job: LocalJob) -> None:
    fill(job, 20)
    stream = a_stream(job)
    start = stream.initialOffset()
    parts = stream.partitions(start, {**start, "next": 21})
    job.jobs.erase("j")
    with pytest.raises(UnknownJob):
        stream.latestOffset(start, ALL)
    with pytest.raises(UnknownJob):
        positions(stream, parts)

    job.jobs.create("j", job.plan)
    job.client.hset(keys.job("j"), "made_at", "7")

    for call in (lambda: a_stream(job).latestOffset(start, ALL), lambda: positions(stream, parts)):
        with pytest.raises(UnknownJob, match="no longer knows job 'j'"):
            call()
    job.is_tampered = True


def test_a_lost_tail_halts_the_job_and_one_that_was_accepted_is_told(job: LocalJob) -> None:
    fill(job, 20)
    stream = a_stream(job)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    parts = stream.partitions(start, end)
    job.is_tampered = True
    job.client.hset(keys.out_meta("j", "out"), mapping={"head": 10})
    job.client.xtrim(keys.out("j", "out"), maxlen=0)

    with pytest.raises(TailLost, match=r"reader 'r' had read up to result 20, Redis has 10 \(10 records\)"):
        a_stream(job).latestOffset(end, ALL)
    assert job.jobs.state("j") is JobState.FAILED

    job.client.hincrby(keys.job("j"), "generation", 1)
    with pytest.raises(JobRestored, match=r"goes on under generation 1 .* reader 'r' had read up to result 20"):
        a_stream(job).latestOffset(end, ALL)
    with pytest.raises(JobRestored, match="goes on under generation 1"):
        positions(stream, parts)


def test_a_tail_that_was_lost_is_noticed_though_as_much_has_come_since(job: LocalJob) -> None:
    fill(job, 20)
    end = a_stream(job).latestOffset(a_stream(job).initialOffset(), ALL)
    job.is_tampered = True
    job.client.hset(keys.job("j"), "run_id", "another")
    job.client.hset(keys.out_meta("j", "out"), "restored_end", "11-0")

    with pytest.raises(TailLost, match="had read up to result 20, Redis has 10"):
        a_stream(job).latestOffset(end, ALL)
    assert a_stream(job).latestOffset({**end, "next": 11}, ALL)["server"] == "another"


@pytest.mark.parametrize("offset", [{}, {"next": "x", "run": "1.1", "server": ""}, {"0": "5-1"}], ids=str)
def test_the_offset_of_another_source_is_refused(job: LocalJob, offset: dict[str, Any]) -> None:
    with pytest.raises(ReadingError, match="is not of this source"):
        a_stream(job).latestOffset(offset, ALL)


@pytest.mark.parametrize("name", ["console", "_x", "a b", "x" * 65])
def test_a_name_that_no_reader_has_is_refused(job: LocalJob, name: str) -> None:
    with pytest.raises(ReadingError, match="cannot be a reader's name"):
        a_stream(job, reader=name)


def test_a_batch_read_of_an_ended_job_leaves_nothing_behind(job: LocalJob) -> None:
    fill(job, 5)
    options = parse({"redis": job.url, "job": "j", "stream": "out", "start": "3"}, Use.RESULTS)
    reader = ResultReader(options, SCHEMA)
    assert positions(reader, reader.partitions()) == [3, 4, 5]
    job.run_to_the_end()
    job.jobs.transition("j", JobState.CANCELLED)
    before = job.client.hgetall(keys.out_meta("j", "out"))

    assert positions(reader, reader.partitions()) == [3, 4, 5]
    assert job.client.hgetall(keys.out_meta("j", "out")) == before
