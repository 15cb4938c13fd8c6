"""Results as frames: all that is kept, streams from checkpoint to checkpoint, and what goes wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.codec import decode_value
from pipeline.errors import ReadingError, StoreUnavailable, UnknownJob, UnsuitableServer
from pipeline.spark import register
from tests.runtime.harness import LocalJob
from tests.spark.frames import a_job, fault_of, forget_newest_commit, loaded, streamed

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def session(spark: Any) -> Any:
    register(spark)
    return spark


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with a_job(redis_url) as made:
        yield made


def fill(job: LocalJob, first: int, count: int, entry_records: int = 7) -> None:
    job.send([{"n": n, "k": n % 3, "x": 0.5} for n in range(first, first + count)], entry_records=entry_records)
    job.run_until_idle()


def test_all_results_come_with_key_value_place_and_partition(session: Any, job: LocalJob) -> None:
    odd = [
        None,
        True,
        2**63,
        -1.5,
        "é\n",
        b"\x00\xff",
        [1, {"a": None}],
        {"k": "s", "x": 1.0},
        datetime(2020, 1, 1, tzinfo=UTC),
    ]
    job.send(odd)
    job.run_until_idle()

    rows = loaded(session, job.url, stream="out", partition_records=4).orderBy("position").collect()

    found = [decode_value(bytes(row.packed)) if row.packed else msgspec.json.decode(row.value) for row in rows]
    assert found == odd
    assert [row.position for row in rows] == list(range(1, len(odd) + 1))
    assert {row.partition for row in rows} <= {0, 1}
    [counted] = loaded(session, job.url, stream="totals").collect()
    assert (counted.key, counted.value) == ("s", "1")


def test_a_schema_gives_columns_and_names_what_does_not_fit(session: Any, job: LocalJob) -> None:
    fill(job, 0, 50)
    frame = loaded(session, job.url, "n INT, x DOUBLE, none STRING, position BIGINT", stream="out", start="11")

    rows = frame.orderBy("position").collect()
    assert [(row.n, row.x, row.none, row.position) for row in rows] == [(n, 0.5, None, n + 1) for n in range(10, 50)]

    misfit = fault_of(lambda: loaded(session, job.url, "k STRING", stream="out").collect())
    assert isinstance(misfit, ReadingError)
    assert "result 1: column 'k' is string, and the value is 0" in str(misfit)


def stream_to(frame: Any, folder: Path, checkpoint: Path) -> Any:
    """Runs what is there into a folder of JSON, and returns the query when it has ended."""
    query = (
        frame.writeStream.format("json")
        .option("path", str(folder))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def taken(session: Any, folder: Path) -> list[int]:
    return sorted(row.position for row in session.read.schema("position BIGINT").json(str(folder)).collect())


def oldest(job: LocalJob) -> int:
    [out] = [each for each in job.jobs.facts(job.job).outputs if each.name == "out"]
    return out.oldest


def test_a_stream_goes_on_from_its_checkpoint_and_gives_each_result_once(
    session: Any, job: LocalJob, tmp_path: Path
) -> None:
    fill(job, 0, 50)
    folder, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    frame = streamed(session, job.url, stream="out", reader="r", max_records=20)
    query = stream_to(frame, folder, checkpoint)
    assert [part["numInputRows"] for part in query.recentProgress if part["numInputRows"]] == [20, 20, 10]
    assert taken(session, folder) == list(range(1, 51))
    assert 15 <= oldest(job) <= 41  # the newest batch is held until Spark plans another

    # The driver dies between the sink's commit and Spark's own: the batch comes again, with the same results.
    forget_newest_commit(checkpoint)
    fill(job, 50, 25)
    stream_to(frame, folder, checkpoint)

    assert taken(session, folder) == list(range(1, 76))
    assert oldest(job) > 41


def test_wrong_asking_is_told_at_once_and_no_password_is_shown(
    session: Any, job: LocalJob, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fill(job, 0, 5)
    user = "spark"
    job.client.execute_command("ACL", "SETUSER", user, "on", ">hush-secret", "~*", "&*", "+@all")
    try:
        url = job.url.replace("://", f"://{user}:hush-secret@", 1)
        frame = loaded(session, url, stream="out")
        frame.explain(True)
        frame.write.format("noop").mode("overwrite").save()
        wrong = fault_of(lambda: loaded(session, url.replace("hush", "wrong"), stream="out").collect())
        assert isinstance(wrong, UnsuitableServer)
        told = capfd.readouterr().out + str(wrong) + frame._jdf.queryExecution().toString()
        missing = fault_of(lambda: loaded(session, url, job="k").collect())
        assert isinstance(missing, UnknownJob)
    finally:
        job.client.execute_command("ACL", "DELUSER", user)
    assert "hush-secret" not in told
    assert "wrong-secret" not in told

    several = fault_of(lambda: loaded(session, job.url).collect())
    assert "has several outputs to read: out, counts, means" in str(several)
    away = fault_of(lambda: loaded(session, "redis://127.0.0.1:1/0").collect())
    assert isinstance(away, StoreUnavailable)
    table = fault_of(lambda: loaded(session, job.url, table="letters"))
    assert table.hint == "one of results, state, dead_letters, savepoint, jobs"
    nameless = fault_of(lambda: stream_to(streamed(session, job.url, start="begin"), tmp_path, tmp_path / "c"))
    assert "spark.readStream needs option 'reader'" in str(nameless)


def test_a_batch_read_holds_what_it_has_planned(session: Any, job: LocalJob) -> None:
    fill(job, 0, 20)

    assert loaded(session, job.url, stream="out").count() == 20

    [out] = [each for each in job.jobs.facts(job.job).outputs if each.name == "out"]
    assert [(reader.is_temporary, reader.expire_seconds) for reader in out.readers] == [(True, 60.0)]
