"""Records per second between a job and Spark: its results read, its inboxes written, a file that Spark reads into it.

    python benchmarks/datasource.py                       # 1,000,000 records, local[2]
    python benchmarks/datasource.py --records 4000000 --only source

Three parts:
- `reading`: a job in this process makes results first; the format `pipeline` reads them into Spark's sink `noop`, as a
  frame and as a stream. That all came is seen by their numbers, added up once.
- `writing`: rows of a frame into the inboxes of the job, where they are counted.
- `source`: a file of small lines, which Spark reads and whose lines its tasks append to the job's entry stage. Every
  line is looked for in the inboxes: each must be there once, those of a split in order.

Each way runs once unmeasured, which starts Spark's Python workers, and then `--rounds` times, Spark's planning
included. Rates hang on what else the machine does; processor time for each record does so less, and the last figure of
a line is the rate at which it would fill two cores. Beside each is what plain Python on one core does with the same:
the entries fetched and decoded, the lines appended.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.cputime import CpuSeconds, cpu_seconds
from pipeline import Pipeline, read, write
from pipeline.codec import decode_batch
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.graph import SourceSpec
from pipeline.messages import Data, decode_header
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.sources.runner import feed_source
from pipeline.spark import register
from pipeline.spark.session import spark_session
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.ranges import extent_of, read_range
from pipeline.store.scripts import Scripts
from pipeline.store.senders import FeedAddress
from tests.runtime.harness import LocalJob

ENTRY_RECORDS = 4_000
PARTITIONS = 4
SCHEMA = "key STRING, n BIGINT, x DOUBLE, position BIGINT"
ROOM = Limits(inbox_records=1 << 40, inbox_bytes=1 << 40)
PARTS = ("reading", "writing", "source")


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


class Measuring:
    """Times what is called, and asks the processes what they used."""

    def __init__(self, jvm: int, redis: int, rounds: int) -> None:
        self._pids = (jvm, redis)
        self._rounds = rounds

    def spark(self, what: str, records: int, call: Callable[[int], None]) -> None:
        """Calls with 0, which is not measured, and with the number of each round."""
        call(0)
        self._measure(what, records, range(1, self._rounds + 1), call)

    def plain(self, what: str, records: int, call: Callable[[], None]) -> None:
        self._measure(f"  plain: {what}", records, range(self._rounds), lambda _: call())

    def _measure(self, what: str, records: int, numbers: range, call: Callable[[int], None]) -> None:
        rates, used = [], []
        for number in numbers:
            before, started = self._used(), perf_counter()
            call(number)
            rates.append(records / (perf_counter() - started))
            used.append(self._used() - before)
        least = min(used, key=lambda each: each.total)
        full = 2 * records / max(least.total, 1e-9)
        told = ", ".join(f"{rate:,.0f}" for rate in rates)
        print(f"{what:34}{told} records/s; {least.for_each(records)}, {full:,.0f}/s on two cores", flush=True)

    def _used(self) -> CpuSeconds:
        return cpu_seconds(*self._pids)


def reading(spark: Any, url: str, records: int, measuring: Measuring, folder: str) -> None:
    def told(reader: Any, stream: str, schema: str) -> Any:
        reader = reader.format("pipeline").option("redis", url).option("job", "j").option("stream", stream)
        return reader.schema(schema) if schema else reader

    def stream(name: str, schema: str, number: int) -> None:
        reader = told(spark.readStream, name, schema).option("reader", f"round-{number}").load()
        place = str(Path(folder) / f"{name}-{bool(schema)}-{number}")
        writer = reader.writeStream.format("noop").option("checkpointLocation", place)
        writer.trigger(availableNow=True).start().awaitTermination()

    for what, name, schema in (
        ("read numbers as JSON", "numbers", ""),
        ("read objects as JSON", "objects", ""),
        ("read objects into columns", "objects", SCHEMA),
    ):
        total = told(spark.read, name, schema).load().selectExpr("sum(position)").first()[0]
        if total != records * (records + 1) // 2:
            sys.exit(f"WRONG: the positions of {what} add up to {total}")
        run = told(spark.read, name, schema).load().write.format("noop").mode("overwrite").save
        measuring.spark(what, records, lambda _, run=run: run())
        measuring.plain("fetched and decoded", records, lambda name=name: fetch(url, name, records))
    measuring.spark("stream of objects into columns", records, lambda number: stream("objects", SCHEMA, number))


def fetch(url: str, stream: str, records: int) -> None:
    client = connect(url)
    run = extent_of(client, "j", stream).run
    if sum(len(piece.batch()) for piece in read_range(client, "j", stream, run, range(1, records + 1))) != records:
        sys.exit("WRONG: not all records were fetched")
    client.close()


def writing(spark: Any, job: LocalJob, records: int, measuring: Measuring, folder: str) -> None:
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
        measuring.spark(what, records, lambda number, way=way: write_in(way, number))
    ordered.unpersist()


def appended(job: LocalJob) -> int:
    heads = [job.client.hget(keys.meta("j", 0, number), "head") for number in range(2)]
    return sum(int(head or 0) for head in heads)


def source(url: str, records: int, measuring: Measuring, folder: str) -> None:
    path = Path(folder) / "lines.txt"
    with path.open("w") as file:
        file.writelines(f"{n:09} user-{n % 1000}\n" for n in range(records))

    def feed(reader: str, number: int) -> None:
        job = f"feed-{reader}-{number}"
        client = connect(url)
        flow = Pipeline("lines")
        flow.source(read.text(str(path)), name="in").sink(write.stream("out"), name="out")
        jobs = JobStore(Scripts(client))
        jobs.create(job, compile_plan(flow.graph(), PARTITIONS, ROOM))
        summary = feed_source(SourceSpec("text", str(path)), FeedAddress(url, job, "in"), reader=reader)
        if summary.records != records:
            sys.exit(f"WRONG: {summary.records} of {records} records were fed")
        if number == 0:
            verify(client, job, records)
        jobs.erase(job)
        client.close()

    measuring.spark("Spark source, lines of 18 bytes", records, lambda number: feed("spark", number))
    measuring.plain("lines appended", records, lambda: feed("local", 1))


def verify(client: Any, job: str, records: int) -> None:
    """Ends the program unless the inboxes hold every line once, those of one sender in order."""
    seen, newest = bytearray(records), dict[str, int]()
    for partition in range(PARTITIONS):
        place = "-"
        while page := client.xrange(keys.inbox(job, 0, partition), place, "+", count=100):
            for _, fields in page:
                header = decode_header(fields[b"h"])
                if not isinstance(header, Data):
                    continue
                for line in decode_batch(fields[b"d"]).values:
                    number = int(line[:9])
                    if seen[number] or newest.get(header.sender, -1) >= number:
                        sys.exit(f"WRONG: {line!r} came again, or behind a later one of its split")
                    if line != f"{number:09} user-{number % 1000}":
                        sys.exit(f"WRONG: {line!r} is no line of the file")
                    seen[number], newest[header.sender] = 1, number
            place = f"({page[-1][0].decode()}"
    if sum(seen) != records:
        sys.exit(f"WRONG: {sum(seen)} of {records} lines are there")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part; may be given again; all by default")
    asked = parser.parse_args()
    parts = asked.only or PARTS
    spark = spark_session(asked.master)
    register(spark)
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedRedis.start(fsync="everysec") as server,
        LocalJob(server.url, the_pipeline(), limits=ROOM) as job,
    ):
        measuring = Measuring(spark.sparkContext._gateway.proc.pid, server.pid, asked.rounds)
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
        if "source" in parts:
            source(server.url, asked.records, measuring, folder)
        job.is_tampered = True  # what is written at the end is not processed
        job.assign()
        if "reading" in parts:
            fill(job, asked.records)
            reading(spark, server.url, asked.records, measuring, folder)
        if "writing" in parts:
            writing(spark, job, asked.records, measuring, folder)
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)


if __name__ == "__main__":
    main()
