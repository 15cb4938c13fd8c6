"""Records per second through the Spark data source `pipeline`: reading a job's results, and writing into its inboxes.

    python benchmarks/datasource.py                       # 1,000,000 records, local[2]
    python benchmarks/datasource.py --records 200000 --master local[4]

A job in this process makes the results first. Each way runs once unmeasured, which starts Spark's Python workers, and
then `--rounds` times. Reading goes to Spark's sink `noop`, and the numbers of the results are added up once to see that
all came. What was written is counted in the inboxes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from pipeline import Pipeline, read, write
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.settings import Limits
from pipeline.spark import register
from pipeline.spark.session import spark_session
from pipeline.store import keys
from tests.runtime.harness import LocalJob

ENTRY_RECORDS = 4_000
PARTITIONS = 4
SCHEMA = "key STRING, n BIGINT, x DOUBLE, position BIGINT"
ROOM = Limits(inbox_records=1 << 40, inbox_bytes=1 << 40)


def the_pipeline() -> Pipeline:
    flow = Pipeline("bench")
    rows = flow.source(read.producer(), name="in")
    rows.map(lambda row: row["n"], name="number").sink(write.stream("numbers"), name="plain")
    rows.key_by(lambda row: row["k"], name="by").map(lambda row: row, name="same").sink(write.stream("objects"))
    return flow


def rows_of(first: int, count: int) -> list[dict[str, Any]]:
    return [{"n": n, "k": f"user-{n % 1000}", "x": n / 4} for n in range(first, first + count)]


def fill(job: LocalJob, records: int) -> None:
    job._readers.clear()
    for first in range(0, records, 20 * ENTRY_RECORDS):
        job.send(rows_of(first, min(20 * ENTRY_RECORDS, records - first)), entry_records=ENTRY_RECORDS)
        job.run_until_idle()


def measured(what: str, records: int, rounds: int, call: Callable[[int], None]) -> None:
    call(0)
    rates = []
    for number in range(1, rounds + 1):
        started = perf_counter()
        call(number)
        rates.append(records / (perf_counter() - started))
    print(f"{what:36}{', '.join(f'{rate:,.0f}' for rate in rates)} records/s", flush=True)


def reading(spark: Any, url: str, records: int, rounds: int) -> None:
    def frame(stream: str, schema: str) -> Any:
        reader = spark.read.format("pipeline").option("redis", url).option("job", "j").option("stream", stream)
        return (reader.schema(schema) if schema else reader).load()

    for what, stream, schema in (
        ("read numbers as JSON", "numbers", ""),
        ("read objects as JSON", "objects", ""),
        ("read objects into columns", "objects", SCHEMA),
    ):
        total = frame(stream, schema).selectExpr("sum(position)").first()[0]
        if total != records * (records + 1) // 2:
            sys.exit(f"WRONG: the positions of {what} add up to {total}")
        run = frame(stream, schema).write.format("noop").mode("overwrite").save
        measured(what, records, rounds, lambda _, run=run: run())


def writing(spark: Any, job: LocalJob, records: int, rounds: int, folder: str) -> None:
    frame = spark.range(records).selectExpr("id as n", "concat('user-', id % 1000) as k", "id / 4 as x")
    ordered = frame.repartition(PARTITIONS, "n").sortWithinPartitions("n").persist()
    ordered.count()

    def write_in(way: dict[str, str], number: int) -> None:
        writer = ordered.write.format("pipeline").mode("append").option("redis", job.url).option("job", "j")
        for name, value in {"name": f"{min(way)}-{number}", **way}.items():
            writer = writer.option(name, value)
        before = appended(job)
        writer.save()
        if appended(job) - before != records:
            sys.exit(f"WRONG: {appended(job) - before} of {records} records are there")

    for what, way in (
        ("write, sorted", {"order_by": "n", "frame_partitions": str(PARTITIONS)}),
        ("write, staged", {"staging": folder}),
    ):
        measured(what, records, rounds, lambda number, way=way: write_in(way, number))


def appended(job: LocalJob) -> int:
    heads = [job.client.hget(keys.meta("j", 0, number), "head") for number in range(2)]
    return sum(int(head or 0) for head in heads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    asked = parser.parse_args()
    spark = spark_session(asked.master)
    register(spark)
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedRedis.start(fsync="everysec") as server,
        LocalJob(server.url, the_pipeline(), limits=ROOM) as job,
    ):
        job.is_tampered = True  # what is written at the end is not processed
        job.assign()
        fill(job, asked.records)
        reading(spark, server.url, asked.records, asked.rounds)
        writing(spark, job, asked.records, asked.rounds, folder)


if __name__ == "__main__":
    main()
