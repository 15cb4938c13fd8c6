"""A job for the tests of the data source, and the data source with its options given."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pipeline import Pipeline, count, mean, read, write
from pipeline.settings import Limits
from pipeline.spark import error_behind
from pipeline.store.outputs import remove_reader
from pipeline.store.ranges import extent_of, read_range
from pipeline.store.scripts import Scripts
from tests.runtime.harness import LocalJob


def a_job(redis_url: str, limits: Limits | None = None, *, with_keys: bool = False, job: str = "j") -> LocalJob:
    """Source of objects -> as they are to the stream `out`; and by `k`: how many to `counts`, and the mean of `x`."""
    flow = Pipeline("pairs")
    rows = flow.source(read.producer(with_keys=with_keys), name="in")
    rows.map(check, name="check").sink(write.stream("out"), name="answers")
    keyed = rows.filter(lambda row: isinstance(row, dict) and "k" in row, name="keyed").key_by("k", name="by")
    keyed.aggregate(count(), name="counted").sink(write.stream("counts"), name="totals")
    keyed.aggregate(mean("x"), name="averaged").sink(write.stream("means"), name="averages")
    made = LocalJob(redis_url, flow, limits=limits, job=job)
    made._readers.clear()
    for stream in ("out", "counts", "means"):
        remove_reader(Scripts(made.client), job, stream, "test", made.limits)
    made.assign()
    return made


def check(row: Any) -> Any:
    if row == "bad":
        raise ValueError("a bad row")
    return row


def loaded(spark: Any, redis_url: str, schema: str = "", **options: Any) -> Any:
    """The frame that is read with these options; from the job `j`, unless they say otherwise."""
    return _loaded(spark.read, schema, {"redis": redis_url, "job": "j", **options})


def streamed(spark: Any, redis_url: str, **options: Any) -> Any:
    return _loaded(spark.readStream, "", {"redis": redis_url, "job": "j", **options})


def _loaded(reader: Any, schema: str, options: dict[str, Any]) -> Any:
    reader = reader.format("pipeline")
    for name, value in options.items():
        reader = reader if value is None else reader.option(name, value)
    return (reader.schema(schema) if schema else reader).load()


def save(frame: Any, redis_url: str, **options: Any) -> None:
    writer = frame.write.format("pipeline").mode("append").option("redis", redis_url)
    for name, value in {"job": "j", "source": "in", **options}.items():
        writer = writer.option(name, value)
    writer.save()


def in_order(frame: Any, partitions: int, column: str = "n") -> Any:
    return frame.repartition(partitions, column).sortWithinPartitions(column)


def numbers(job: LocalJob, column: str = "n") -> list[int]:
    """What has come into the job, from its stream `out`, sorted."""
    return sorted(value[column] for value in outputs(job))


def outputs(job: LocalJob, stream: str = "out") -> Iterable[Any]:
    """All values of a stream, read by nobody's name."""
    job.run_until_idle()
    found = extent_of(job.client, job.job, stream)
    pieces = read_range(job.client, job.job, stream, found.run, range(found.first, found.stop))
    return [value for piece in pieces for value in piece.batch().values]


def fault_of(call: Any) -> Any:
    """The error of ours behind the exception that a call of Spark raises."""
    with pytest.raises(Exception) as caught:
        call()
    found = error_behind(caught.value)
    assert found is not None, caught.value
    return found


def forget_newest_commit(checkpoint: Path) -> None:
    """As if the driver had died when the sink had the newest batch, and Spark's log did not say so yet."""
    newest = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()), key=lambda at: int(at.name)
    )
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def forget_plans_behind(checkpoint: Path, batch: int) -> None:
    """As if the driver had died before it planned another one."""
    for path in list((checkpoint / "offsets").iterdir()):
        if path.name.isdecimal() and int(path.name) > batch:
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
