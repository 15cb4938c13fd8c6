"""The Spark engine on a session: failing tasks, sinks, seams, skew and empty input. Nothing is left behind."""

from __future__ import annotations

import gc
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PythonException
from pyspark.sql.functions import udf

from pipeline import Pipeline, count, fail, itself, read, total, write
from pipeline.errors import EnvironmentFault, PipelineError, RecordFailed, SinkAway
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.spark.bulk.connecting import CARRYING, PLANNING
from pipeline.spark.bulk.engine import BulkOptions, BulkResult, BulkRun, run_bulk
from pipeline.spark.bulk.faults import words_of
from tests.spark.interrupting import check_that_an_interrupt_ends_the_job
from tests.spark.seeds import Kept

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def bulk(spark: Any, tmp_path: Path) -> Iterator[Callable[..., BulkResult]]:
    """Runs a pipeline with a scratch folder that must be empty at the end, whatever befell the run."""
    scratch = tmp_path / "scratch"

    def run(flow: Pipeline, **options: Any) -> BulkResult:
        return run_bulk(flow, spark, BulkOptions(**{"partitions": 3, "scratch": scratch, **options}))

    yield run
    assert not scratch.exists() or list(scratch.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def rows_of(folder: Path) -> list[Any]:
    return [json.loads(line) for path in sorted(folder.glob("part-*")) for line in path.read_text().splitlines()]


def by_key(folder: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows_of(folder):
        found.setdefault(row["key"], []).append(row["value"])
    return found


def a_text(folder: Path, lines: int, keys: int = 5) -> Path:
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text("".join(f"k{line % keys} {line}\n" for line in range(number, lines, 3)))
    return folder


def dies_once(mark: Path) -> Callable[[Any], Any]:
    """A function whose process dies at the value 50, the first time that it comes."""

    def check(value: Any) -> Any:
        if value == 50 and not mark.exists():
            mark.touch()
            os._exit(1)
        return value

    return check


@pytest.mark.parametrize("place", ["entry", "keyed"])
def test_a_task_that_dies_is_run_again_and_nothing_is_doubled(
    bulk: Callable[..., BulkResult], tmp_path: Path, place: str
) -> None:
    flow = Pipeline("dying")
    pairs = (
        flow.source(read.text(a_text(tmp_path / "in", 300)))
        .map(lambda line: line.split())
        .map(lambda p: (p[0], int(p[1])))
    )
    dies = dies_once(tmp_path / "died")
    if place == "entry":
        pairs = pairs.map(lambda pair: (pair[0], dies(pair[1])))
    keyed = pairs.key_by(lambda pair: pair[0]).map(lambda pair: pair[1])
    if place == "keyed":
        keyed = keyed.map(dies)
    keyed.aggregate(count(), name="counted").sink(write.jsonl(tmp_path / "out"))

    result = bulk(flow)

    assert (tmp_path / "died").exists()
    assert by_key(tmp_path / "out") == {f"k{key}": list(range(1, 61)) for key in range(5)}
    assert [counts.taken for counts in result.stages] == [300, 300]


def test_what_a_process_of_spark_has_loaded_is_not_looked_through_for_garbage(
    bulk: Callable[..., BulkResult], tmp_path: Path
) -> None:
    flow = Pipeline("settled")
    flow.source(read.iterable([1])).map(lambda _: gc.get_freeze_count()).sink(write.jsonl(tmp_path / "out"))
    before = gc.get_freeze_count()

    bulk(flow)

    assert rows_of(tmp_path / "out")[0] > 10_000
    assert gc.get_freeze_count() <= before, "what our own process has loaded is looked through as ever"


def test_a_record_that_must_not_fail_fails_the_run_and_nothing_is_published(
    bulk: Callable[..., BulkResult], tmp_path: Path
) -> None:
    flow = Pipeline("strict", on_error=fail())
    keyed = flow.source(read.iterable([["a", 1], ["b", 0], ["c", 2]])).key_by(lambda pair: pair[0])
    keyed.map(lambda pair: 1 / pair[1], name="inverse").sink(write.jsonl(tmp_path / "out"))

    with pytest.raises(RecordFailed, match=r"'inverse' failed: ZeroDivisionError.*key 'b'"):
        bulk(flow)

    assert not (tmp_path / "out").exists()


STRANGER = f"""#!{sys.executable}
import runpy
import sys


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "pipeline":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[2:]  # behind -m
runpy.run_module("pyspark.daemon", run_name="__main__")
"""


def test_a_python_of_spark_that_has_no_celeriac_is_told_with_what_to_do(
    bulk: Callable[..., BulkResult], spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = tmp_path / "stranger"
    stranger.write_text(STRANGER)
    stranger.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(stranger))
    flow = Pipeline("strange")
    flow.source(read.iterable([1])).sink(write.jsonl(tmp_path / "out"))

    with pytest.raises(EnvironmentFault, match="the Python processes of Spark have no celeriac") as caught:
        bulk(flow)

    assert "PYSPARK_PYTHON" in caught.value.hint


def test_what_python_raised_in_a_task_is_among_the_words(spark: Any) -> None:
    with pytest.raises(PythonException) as caught:
        spark.range(1).select(udf(lambda _: __import__("a_module_of_the_users"))("id")).collect()

    assert words_of(caught.value) == (
        "An exception was thrown from the Python worker; ModuleNotFoundError: No module named 'a_module_of_the_users'"
    )


def test_more_dead_letters_than_allowed_fail_the_run(bulk: Callable[..., BulkResult], tmp_path: Path) -> None:
    flow = Pipeline("hopeless")
    flow.source(read.iterable(range(50))).map(lambda value: value["x"], name="wrong").sink(
        write.jsonl(tmp_path / "out")
    )

    with pytest.raises(RecordFailed, match="more than 20 records"):
        bulk(flow, limits=Limits(dead_letters=20))

    assert not (tmp_path / "out").exists()


def test_input_without_a_record_gives_an_empty_result(bulk: Callable[..., BulkResult], tmp_path: Path) -> None:
    flow = Pipeline("empty")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/none.txt").touch()
    keyed = flow.source(read.text(tmp_path / "in")).union(flow.source(read.iterable([]))).key_by(lambda line: line)
    keyed.aggregate(count()).last().sink(write.jsonl(tmp_path / "out"))

    result = bulk(flow)

    assert (rows_of(tmp_path / "out"), [counts.taken for counts in result.stages]) == ([], [0, 0, 0])


def test_one_key_and_a_million_keys_go_through_one_partition(bulk: Callable[..., BulkResult], tmp_path: Path) -> None:
    flow = Pipeline("skewed")
    numbers = flow.source(read.iterable(range(1_000_000)), name="in")
    numbers.filter(itself() < 100_000, name="some").key_by(lambda _: "all", name="one").aggregate(
        total(), name="sum"
    ).last(name="end").sink(write.jsonl(tmp_path / "one"))
    numbers.key_by(itself(), name="own").aggregate(count(), name="n").last(name="last").sink(
        write.text(tmp_path / "many")
    )

    result = bulk(flow, partitions=1)

    assert rows_of(tmp_path / "one") == [{"key": "all", "value": 4_999_950_000}]
    (many,) = (tmp_path / "many").glob("part-*")
    assert many.read_text() == "".join(f"{number}: 1\n" for number in range(1_000_000))
    assert [counts.emitted for counts in result.stages] == [1_100_000, 1, 1_000_000]


FORCED_SPILLS = "spark.shuffle.spill.numElementsForceSpillThreshold"


@pytest.fixture
def spilling(spark: Any) -> Iterator[Callable[[], int]]:
    """Spark's sorters hold four rows in memory, and write the others to disk. How many bytes that were until now."""
    jvm, gateway, context = spark._jvm, spark.sparkContext._gateway, spark.sparkContext._jsc.sc()
    store, conf = context.statusStore(), context.conf()

    def spilled() -> int:
        everything = None, False, False, gateway.new_array(jvm.double, 0), jvm.java.util.ArrayList()
        stages = store.stageList(*everything)
        return sum(stages.apply(place).diskBytesSpilled() for place in range(stages.size()))

    conf.set(FORCED_SPILLS, "4")
    yield spilled
    conf.remove(FORCED_SPILLS)


def test_rows_that_spark_spills_come_in_their_order(
    bulk: Callable[..., BulkResult], spilling: Callable[[], int], tmp_path: Path
) -> None:
    flow = Pipeline("spilled")
    lines = flow.source(read.text(a_text(tmp_path / "in", 15_000)), name="in")
    keyed = lines.map(str.split, name="split").key_by(lambda words: words[0], name="by")
    keyed.stateful_map(lambda _, words, seen: ([seen or 0, int(words[1])], (seen or 0) + 1), name="numbered").sink(
        write.jsonl(tmp_path / "out")
    )
    before = spilling()

    bulk(flow)

    assert spilling() > before
    in_order = [number for file in range(3) for number in range(file, 15_000, 3)]
    expected = {f"k{key}": [number for number in in_order if number % 5 == key] for key in range(5)}
    assert by_key(tmp_path / "out") == {
        key: [list(pair) for pair in enumerate(found)] for key, found in expected.items()
    }


def test_each_sink_gets_each_record_once(bulk: Callable[..., BulkResult], tmp_path: Path) -> None:
    called: list[dict[str, Any]] = []
    printed: list[Batch] = []
    away = iter([True, False])

    def call(records: list[dict[str, Any]]) -> None:
        if next(away, False):
            raise SinkAway("not just now")
        if any(record["value"] == 7 for record in records):
            raise ValueError("no seven")
        called.extend(records)

    flow = Pipeline("sinks")
    keyed = flow.source(read.iterable(range(20)), name="in").key_by(lambda value: value % 4, name="by")
    keyed.sink(write.call(call, batch=100), name="called")
    keyed.map(lambda value: {"n": value}).sink(
        write.sql(f"sqlite:///{tmp_path}/a.db", "numbers", create=True), name="sql"
    )
    keyed.map(lambda value: {"m": value}).sink(
        write.sql(f"sqlite:///{tmp_path}/a.db", "others", create=True), name="sql_2"
    )
    keyed.sink(write.text(tmp_path / "text"), name="text")
    keyed.map(lambda value: {"n": value}).sink(write.csv(tmp_path / "csv"), name="csv")
    keyed.map(lambda value: {"n": value}).sink(write.parquet(tmp_path / "parquet", writer="local"), name="parquet")
    keyed.map(lambda value: {"n": value}).sink(write.delta(tmp_path / "delta"), name="delta")
    keyed.sink(write.jsonl(tmp_path / "parts", rotate_bytes=20), name="parts")
    keyed.sink(write.console(), name="console")

    result = bulk(flow, takers={"console": printed.append})

    assert sorted(record["value"] for record in called) == [n for n in range(20) if n != 7]
    assert len({record["idempotency_key"] for record in called}) == 19
    assert [(letter.operator, letter.error, letter.record().values) for letter in result.letters] == [
        ("called", "ValueError: no seven", [7])
    ]
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        assert database.execute("select n from numbers order by n").fetchall() == [(n,) for n in range(20)]
        assert database.execute("select m from others order by m").fetchall() == [(n,) for n in range(20)]
    assert sorted(value for batch in printed for value in batch.values) == list(range(20))
    assert result.given == {"called": 19, "sql": 20, "sql_2": 20, "console": 20}
    assert {sink.name: done.records for sink, done in result.published} == {
        "text": 20, "csv": 20, "parquet": 20, "delta": 20, "parts": 20,
    }  # fmt: skip
    assert len(rows_of(tmp_path / "parts")) == 20
    table = DeltaTable(tmp_path / "delta")
    assert (table.version(), sorted(table.to_pandas()["n"])) == (0, list(range(20)))


def test_a_table_with_partitions_becomes_another_one(bulk: Callable[..., BulkResult], tmp_path: Path) -> None:
    sales = pd.DataFrame({"place": [f"p{n % 7}" for n in range(700)], "n": range(700)})
    write_deltalake(tmp_path / "sales", sales, partition_by=["place"])
    flow = Pipeline("sums")
    keyed = flow.source(read.delta(tmp_path / "sales"), name="sales").key_by("place", name="by_place")
    sums = keyed.map(lambda row: row["n"], name="number").aggregate(total(), name="sum").last(name="last")
    sums.map(lambda n: {"n": n}, name="row").sink(write.delta(tmp_path / "sums"), name="sums")

    bulk(flow)

    table = DeltaTable(tmp_path / "sums")
    found = table.to_pandas().sort_values("place", ignore_index=True)
    pd.testing.assert_frame_equal(found, sales.groupby("place", as_index=False).sum())
    assert table.version() == 0


def test_a_run_that_goes_on_from_the_state_of_another_ends_as_one_run_would(spark: Any, tmp_path: Path) -> None:
    text = a_text(tmp_path / "in", 300, keys=3)  # a key for each file: between files there is no order
    outputs: list[Any] = []

    def flow() -> Pipeline:
        made = Pipeline("joined")
        pairs = made.source(read.text(text), name="in").map(lambda line: line.split(), name="split")
        keyed = pairs.key_by(lambda pair: pair[0], name="by").map(lambda pair: int(pair[1]), name="number")
        sums = keyed.aggregate(n=count(), sum=total(), name="sums")
        sums.last(name="end").key_by(lambda _: "all", name="again").aggregate(count(), name="ended").sink(
            write.stream("ends"), name="ends"
        )
        sums.sink(write.stream("sums"), name="sums_out")
        return made

    def run(**options: Any) -> tuple[dict[str, Any], Kept, dict[str, dict[str, int]]]:
        outputs.clear()
        take = {
            name: lambda batch, name=name: outputs.extend(
                (name, *pair) for pair in zip(batch.keys, batch.values, strict=True)
            )
            for name in ("ends", "sums_out")
        }
        given = BulkOptions(takers=take, keeps_state=True, scratch=tmp_path, **options)
        with BulkRun(flow(), given) as bulk:
            bulk.prepare()
            bulk.compute(spark)
            bulk.publish()
            assert sorted(bulk.folders) == [1, 2], "a source that feeds one stage is not written down before"
            found: dict[str, Any] = {}
            for name, key, value in outputs:
                found.setdefault(f"{name} {key}", []).append(value)
            return found, Kept(tuple(bulk.states()), tuple(bulk.timers())), bulk.facts.splits

    whole, end, splits = run(partitions=3)
    cut = {split: (0, records // 3) for split, records in splits["in"].items()}
    rest = {split: (records // 3, None) for split, records in splits["in"].items()}
    first, state, reached = run(partitions=2, ranges={"in": cut}, ends_input=False)
    second, final, _ = run(partitions=3, ranges={"in": rest}, seed=state)

    assert sum(splits["in"].values()) == 300
    assert reached == {"in": {split: records // 3 for split, records in splits["in"].items()}}
    assert state.open, "last() waits for the end of the input"
    assert not any(name.startswith("ends ") for name in first)
    assert {name: sorted(map(repr, first.get(name, []) + second.get(name, []))) for name in whole} == {
        name: sorted(map(repr, values)) for name, values in whole.items()
    }
    assert sorted(map(repr, final.states)) == sorted(map(repr, end.states))
    assert (final.open, end.open) == ((), ())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda flow: flow.source(read.producer(), name="in").sink(write.jsonl("/tmp/never")),
            "'in' takes what producers",
        ),
        (
            lambda flow: flow.source(read.text("/tmp/x", follow=True), name="in").sink(write.jsonl("/tmp/never")),
            "no end",
        ),
        (lambda flow: flow.source(read.generator(lambda _: []), name="in").sink(write.jsonl("/tmp/never")), "no end"),
        (lambda flow: flow.source(read.iterable([])).sink(write.stream("s"), name="out"), "'out' is a stream"),
    ],
    ids=["producer", "follow", "generator", "stream"],
)
def test_what_has_no_end_or_needs_redis_is_refused_before_spark_starts(
    make: Callable[[Pipeline], None], message: str
) -> None:
    flow = Pipeline("refused")
    make(flow)

    with pytest.raises(PipelineError, match=message), BulkRun(flow, BulkOptions()) as run:
        run.prepare()


def test_a_generator_with_an_end_is_read_through_its_faults(bulk: Callable[..., BulkResult], tmp_path: Path) -> None:
    calls: list[Any] = []

    def numbered(position: Any) -> Iterator[tuple[int, int]]:
        calls.append(position)
        for number in range((position or 0) + 1, 31):
            yield number, number
            if number == 10 and len(calls) == 1:
                raise ConnectionError("the line was cut")

    flow = Pipeline("generated")
    flow.source(read.generator(numbered, poll_seconds=None)).sink(write.jsonl(tmp_path / "out"))

    bulk(flow)

    assert calls == [None, 10]
    assert rows_of(tmp_path / "out") == list(range(1, 31))


def test_settings_of_the_session_are_as_before(bulk: Callable[..., BulkResult], spark: Any, tmp_path: Path) -> None:
    before = {name: spark.conf.get(name) for name in {**CARRYING, **PLANNING}}
    flow = Pipeline("settled")
    flow.source(read.iterable([1])).sink(write.jsonl(tmp_path / "out"))

    bulk(flow)

    assert {name: spark.conf.get(name) for name in {**CARRYING, **PLANNING}} == before


@pytest.mark.usefixtures("loggers_as_before")
def test_an_interrupt_ends_the_jobs_of_a_call(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_an_interrupt_ends_the_job(spark, tmp_path, monkeypatch)
