"""A DataFrame operator in a live job whose worker, and then its Spark, is killed: each row once, and no JVM is left."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import psutil
import pytest

from tests import jvm
from tests.e2e.chaos import Site, read_rows, wait_until

pytestmark = pytest.mark.timeout(600)

COUNT: Final = 2_000
SECONDS: Final = 300.0

FLOW: Final = f"""
from functools import cache

from pipeline import Pipeline, read, write

CARRIERS = [("AA", "American"), ("UA", "United"), ("WN", "Southwest")]


@cache
def carriers(spark):
    return spark.createDataFrame(CARRIERS, "carrier string, name string").coalesce(1).cache()


def flights():
    for number in range({COUNT}):
        yield {{"number": number, "carrier": ("AA", "UA", "XX")[number % 3], "delay": number / 4}}


def named(frame):
    from pyspark.sql.functions import broadcast

    joined = frame.where("number % 5 != 0").join(broadcast(carriers(frame.sparkSession)), "carrier", "left")
    return joined.selectExpr("number", "name", "explode(array(delay, -delay)) as delay")


flow = Pipeline("named")
(
    flow.source(read.iterable(flights), name="flights")
    .transform(named, schema="number long, carrier string, delay double", batch=50, name="named")
    .sink(write.jsonl("out"), name="out")
)
"""

NAMES: Final = {"AA": "American", "UA": "United", "XX": None}


def expected() -> list[dict[str, object]]:
    return [
        {"number": number, "name": NAMES[("AA", "UA", "XX")[number % 3]], "delay": delay}
        for number in range(COUNT)
        if number % 5
        for delay in (number / 4, -number / 4)
    ]


def has_ended(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def test_each_row_counts_once_when_a_worker_and_its_spark_are_killed(site: Site) -> None:
    site.write(FLOW)
    run = site.start("flow.py", "--workers", "1", **jvm.FAST)

    def wait_for(count: float) -> None:
        wait_until(lambda: run.assert_running() or run.taken() >= count, f"{count:.0f} records are taken", SECONDS)

    wait_for(COUNT * 0.1)
    java = run.child("java")
    run.kill("w0")
    wait_until(lambda: has_ended(java), "the JVM has ended with its worker")
    wait_for(COUNT * 0.4)
    run.kill("java")

    run.finish(seconds=SECONDS)
    assert "Spark has ended: operator=named" in run.log("w0")
    assert list(read_rows(run.folder / "out")) == expected()
    site.assert_clean("flow.py", "out")
