"""Frames into the source of a job, each row once: through failing tasks, crashes of the driver, and full inboxes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pipeline.codec import decode_batch
from pipeline.errors import InboxFull, ProducerError
from pipeline.settings import Limits
from pipeline.spark import register
from pipeline.store import keys
from tests.runtime.harness import LocalJob
from tests.spark.frames import a_job, fault_of, forget_newest_commit, in_order, numbers, outputs, save

pytestmark = pytest.mark.timeout(300)

KEYS = [f"k{number}" for number in range(5)]


@pytest.fixture
def session(spark: Any) -> Any:
    register(spark)
    sys.modules["pyspark"].cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return spark


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with a_job(redis_url) as made:
        yield made


def frame_of(session: Any, count: int) -> Any:
    return session.range(count).selectExpr("cast(id as int) as n", "concat('k', id % 5) as k", "id / 2 as x")


def failing_once(frame: Any, folder: Path) -> Any:
    """The same rows in the same order; each task fails behind 4,000 rows, once."""
    folder.mkdir()

    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        mark, rows = folder / str(TaskContext.get().partitionId()), 0
        for batch in batches:
            yield batch
            rows += batch.num_rows
            if rows >= 4_000 and not mark.exists():
                mark.touch()
                raise RuntimeError("this attempt was told to fail")

    return frame.mapInArrow(fail, frame.schema)


def test_sorted_rows_come_in_once_though_every_task_fails_and_the_write_is_repeated(
    session: Any, job: LocalJob, tmp_path: Path
) -> None:
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1500")
    try:
        frame = failing_once(in_order(frame_of(session, 14_000), 2), tmp_path / "marks")
        options = {"name": "w", "order_by": "n", "frame_partitions": 2}
        save(frame, job.url, **options)
        assert len(list((tmp_path / "marks").iterdir())) == 2
        assert numbers(job) == list(range(14_000))
        row = next(value for value in outputs(job) if value["n"] == 7)
        assert row == {"n": 7, "k": "k2", "x": 3.5}

        save(in_order(frame_of(session, 14_000), 2), job.url, **options)
        assert numbers(job) == list(range(14_000))
    finally:
        session.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    other = fault_of(
        lambda: save(in_order(frame_of(session, 14_001), 3), job.url, **{**options, "frame_partitions": 3})
    )
    assert "the write 'w' was begun with 2 partitions, and now it has 3 partitions" in str(other)
    assert numbers(job) == list(range(14_000))


def test_rows_that_have_no_order_of_their_own_are_refused(session: Any, job: LocalJob) -> None:
    frame = frame_of(session, 100)

    nothing = fault_of(lambda: save(frame, job.url, name="w"))
    assert isinstance(nothing, ProducerError)
    assert "come in another order at every attempt" in str(nothing)
    assert "staging" in nothing.hint
    twice = fault_of(lambda: save(in_order(frame, 2, "k"), job.url, name="w", order_by="k", frame_partitions=2))
    assert "are not in the order of k, each once" in str(twice)
    wrong = fault_of(lambda: save(in_order(frame, 3), job.url, name="v", order_by="n", frame_partitions=2))
    assert "the frame has a partition 2, and option 'frame_partitions' is 2" in str(wrong)
    assert numbers(job) == [] or len(numbers(job)) < 100


def test_a_thread_that_did_not_make_the_session_finds_the_format_too(spark: Any, job: LocalJob) -> None:
    def refused() -> Any:
        register(spark)
        return fault_of(lambda: save(frame_of(spark, 10), job.url, name="w"))

    with ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(refused).result(100), ProducerError)


def test_any_frame_is_staged_and_comes_in_once_whatever_the_next_run_makes_of_it(
    session: Any, job: LocalJob, tmp_path: Path
) -> None:
    options = {"name": "w", "staging": str(tmp_path / "staging")}
    frame = failing_once(frame_of(session, 12_000).repartition(2), tmp_path / "marks")
    save(frame, job.url, **options)
    assert len(list((tmp_path / "marks").iterdir())) == 2
    assert numbers(job) == list(range(12_000))

    # A driver that died before it had said that all was sent: the rows are still there, and the frame is another.
    [sent] = (tmp_path / "staging").rglob("sent")
    assert list(sent.parent.glob("*.parquet")) == []
    sent.unlink()
    gone = fault_of(lambda: save(frame_of(session, 5), job.url, **options))
    assert "the staged file" in str(gone)
    sent.touch()
    save(frame_of(session, 5), job.url, **options)
    assert numbers(job) == list(range(12_000))


def test_a_full_inbox_is_waited_for_and_then_told(session: Any, redis_url: str) -> None:
    with a_job(redis_url, Limits(inbox_records=150)) as job:
        options = {"name": "w", "order_by": "n", "frame_partitions": 1}
        frame = in_order(frame_of(session, 200), 1)

        full = fault_of(lambda: save(frame, job.url, **options, full_timeout_seconds=0))

        assert isinstance(full, InboxFull)
        assert "write 'w', batch 0, partition 0: the inbox" in str(full)
        assert "full_timeout_seconds" in full.hint
        is_over = Event()

        def work() -> None:
            while not is_over.wait(0.01):
                job.run_until_idle()

        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            try:
                save(frame, job.url, **options)
            finally:
                is_over.set()
        working.result()
        job.run_until_idle()
        assert {key: n for (name, key), n in job.state().items() if name == "counted"} == dict.fromkeys(KEYS, 40)


def test_keys_times_and_ids_of_a_frame_are_those_of_the_records(session: Any, redis_url: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    with a_job(redis_url, with_keys=True) as job:
        rows = [("a", 1, datetime(2024, 1, 2, tzinfo=UTC), "one"), ("b", 2, datetime(1960, 1, 1, tzinfo=UTC), "one")]
        frame = session.createDataFrame(rows, "key string, value int, time timestamp, id string").coalesce(1)
        save(frame.withColumn("n", F.col("value")), redis_url, name="w", order_by="n", frame_partitions=1)

        entries = job.client.xrange(keys.inbox("j", 0, 0)) + job.client.xrange(keys.inbox("j", 0, 1))
        [batch] = [decode_batch(fields[b"d"]) for _, fields in entries]
        assert batch.times == [1_704_153_600_000, -315_619_200_000]
        assert list(outputs(job)) == [{"key": "a", "value": 1}]


@pytest.mark.parametrize("way", ["order_by", "staging"])
def test_a_stream_puts_each_batch_in_once_though_the_driver_dies_between_two(
    session: Any, job: LocalJob, tmp_path: Path, way: str
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    ways = {"order_by": {"order_by": "n", "frame_partitions": 2}, "staging": {"staging": str(tmp_path / "staging")}}

    def run() -> None:
        frame = session.readStream.schema("n INT").option("maxFilesPerTrigger", 1).json(str(source)).repartition(2, "n")
        writer = frame.writeStream.format("pipeline").option("redis", job.url).option("job", "j")
        for name, value in {"checkpointLocation": checkpoint, **ways[way]}.items():
            writer = writer.option(name, str(value))
        writer.trigger(availableNow=True).start().awaitTermination()

    for first in (0, 100):
        frame_of(session, 100).selectExpr(f"n + {first} as n").coalesce(1).write.mode("append").json(str(source))
    run()
    assert numbers(job) == list(range(200))

    forget_newest_commit(checkpoint)
    frame_of(session, 50).selectExpr("n + 200 as n").coalesce(1).write.mode("append").json(str(source))
    run()

    assert numbers(job) == list(range(250))
