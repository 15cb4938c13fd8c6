"""State, dead letters, savepoints and jobs as frames; only the keys of a condition are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualNullSafe, EqualTo, GreaterThan, In
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from pipeline.errors import ReadingError
from pipeline.savepoints.export import take_savepoint
from pipeline.savepoints.manifest import new_name
from pipeline.savepoints.places import LocalPlace
from pipeline.spark import register
from pipeline.spark.datasource.options import Use, parse
from pipeline.spark.datasource.tables import PushingSavepointReader, PushingStateReader, keys_of
from tests.runtime.harness import LocalJob
from tests.spark.frames import a_job, fault_of, loaded

pytestmark = pytest.mark.timeout(300)

TEXTS = ("stage", "operator", "key", "value", "result")
STATE = StructType(
    [
        StructField(name, IntegerType() if name == "group" else BinaryType() if name == "packed" else StringType())
        for name in ("stage", "operator", "group", "key", "value", "packed", "result")
    ]
)


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with a_job(redis_url) as made:
        made.send([{"k": k, "x": n} for k in KEYS for n in range(3)] + ["bad", {"k": "a", "x": b"no"}])
        made.run_until_idle()
        yield made


KEYS: list[Any] = ["a", "1", 1, "é", '"', "d e", b"\xff"]
SHOWN = ["a", '"1"', "1", "é", '"', "d e", '{"base64": "/w=="}']


def reader(kind: Any, use: Use, **options: str) -> Any:
    return kind(parse(options, use), STATE)


def rows_of(made: Any) -> list[dict[str, Any]]:
    return [row for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()]


def a_state(job: LocalJob, **options: str) -> Any:
    return reader(PushingStateReader, Use.STATE, redis=job.url, job="j", **options)


def calls(job: LocalJob, command: str) -> int:
    stats = job.client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})
    return int(stats["calls"])


@pytest.mark.parametrize("tasks", ["1", "3", "256"])
def test_every_key_of_every_operator_is_a_row_with_its_result(job: LocalJob, tasks: str) -> None:
    rows = rows_of(a_state(job, partitions=tasks))

    assert sorted((row["operator"], row["key"]) for row in rows) == sorted(
        (name, key) for name in ("counted", "averaged") for key in SHOWN
    )
    means = [row for row in rows if row["operator"] == "averaged" and row["key"] == "1"]
    assert [(row["stage"], row["result"]) for row in means] == [("by", "1.0")]
    assert means[0]["value"] != means[0]["result"]
    counted = rows_of(a_state(job, operator="counted"))
    assert {row["key"]: row["value"] for row in counted} == dict.fromkeys(SHOWN, "3")


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ([EqualTo(("key",), "a")], ["a"]),
        ([EqualNullSafe(("key",), '"1"')], ['"1"']),
        ([In(("key",), ("1", None, "é", "none", '"a"'))], ["1", "é"]),
        ([In(("key",), ("a", "1")), EqualTo(("key",), "1")], ["1"]),
        ([EqualTo(("key",), "a"), EqualTo(("key",), "1")], []),
        ([In(("key",), ())], []),
    ],
    ids=str,
)
def test_of_a_condition_on_keys_only_those_are_fetched(job: LocalJob, conditions: Any, found: list[str]) -> None:
    made = a_state(job, operator="counted")
    other = GreaterThan(("group",), 1)
    before = calls(job, "hscan"), calls(job, "hmget")

    assert list(made.pushFilters([*conditions, other])) == [other]
    rows = rows_of(made)

    assert [row["key"] for row in rows] == found
    assert calls(job, "hscan") == before[0]
    assert calls(job, "hmget") - before[1] <= 5


def test_only_the_written_form_of_a_key_is_its_row() -> None:
    assert keys_of([*SHOWN, '"a"', "[1.5]", ' "1"']) == KEYS


def test_an_operator_that_there_is_not_is_told(job: LocalJob) -> None:
    with pytest.raises(ReadingError, match="has no stage 'conted'") as caught:
        a_state(job, operator="conted")
    assert caught.value.hint


def save(job: LocalJob, folder: Path) -> str:
    name = new_name("j", (2026, 1, 2, 3, 4, 5, 0, 0, 0))
    take_savepoint(job._scripts, job.jobs.read("j"), LocalPlace(folder), name)
    return f"{folder}/{name}"


def test_a_savepoint_has_the_rows_of_the_live_state(job: LocalJob, tmp_path: Path) -> None:
    def in_order(rows: list[dict[str, Any]]) -> list[Any]:
        return sorted(rows, key=lambda row: (row["operator"], row["key"]))

    path = save(job, tmp_path)
    live = rows_of(a_state(job))
    made = reader(PushingSavepointReader, Use.SAVEPOINT, path=path)
    assert in_order(rows_of(made)) == in_order(live)

    made.pushFilters([In(("key",), ("a", "1"))])
    assert in_order(rows_of(made)) == in_order([row for row in live if row["key"] in ("a", "1")])


def test_spark_reads_all_tables_and_hands_conditions_over(
    spark: Any, job: LocalJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register(spark)
    path = save(job, tmp_path)

    state = loaded(spark, job.url, table="state", operator="counted").filter("key in ('a', 'none') and result > 2")
    assert [(row.key, row.result) for row in state.collect()] == [("a", "3")]
    state.explain()
    plan = capsys.readouterr().out
    assert "result" in plan
    assert "none" not in plan  # the condition on keys is not Spark's to check any more

    saved = spark.read.format("pipeline").option("table", "savepoint").load(path)
    assert saved.filter("operator = 'counted' and key = 'é'").select("value").collect()[0].value == "3"

    letters = loaded(spark, job.url, table="dead_letters").orderBy("id").collect()
    assert [(row.operator, row.key, row.kind, row.holds_key, row.behind) for row in letters] == [
        ("check", None, "record", False, 0),
        ("averaged", "a", "record", False, 0),
    ]
    assert letters[0].value == '"bad"'
    assert "ValueError: a bad row" in letters[0].error + letters[0].traceback
    assert letters[0].time is not None

    [row] = loaded(spark, job.url, table="jobs", job=None).collect()
    assert (row.job, row.pipeline, row.state) == ("j", "pairs", "running")

    own = fault_of(lambda: loaded(spark, job.url, "n INT", table="state").collect())
    assert "the table 'state' has columns of its own" in str(own)
