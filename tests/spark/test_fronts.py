"""Filters in front that Spark computes: records, their order, counts and dead letters are those of Python alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import Pipeline, col, itself, read, record, write
from pipeline.api import Stream
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.sources.layout import open_files
from pipeline.spark.bulk import fronts
from pipeline.spark.bulk.carrier import FrontTask
from pipeline.spark.bulk.engine import BulkOptions, BulkRun
from pipeline.spark.bulk.faults import TaskFault
from pipeline.spark.bulk.portions import FilePortions

pytestmark = pytest.mark.timeout(300)

NEVER = 1 << 60


@pytest.fixture(autouse=True)
def _small_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fronts, "_LEAST_BLOCK", 0)


def a_flow(source: Any, filtered: Callable[[Stream], Stream], key: Callable[[Any], Any]) -> Pipeline:
    """All records of a key, in their order."""
    flow = Pipeline("fronts")
    keyed = filtered(flow.source(source, name="in")).key_by(key, name="by")
    keyed.stateful_map(lambda _, value, seen: (value, (seen or 0) + 1), name="each").sink(
        write.jsonl("/never"), name="out"
    )
    return flow


def told(spark: Any, flow: Pipeline, folder: Path, native_bytes: int) -> tuple[str, dict[str, Any]]:
    """Why Spark did not filter, and all that the run has told."""
    options = BulkOptions(partitions=3, results=folder, scratch=folder.parent, native_bytes=native_bytes)
    with BulkRun(flow, options) as run:
        run.prepare()
        run.compute(spark)
        result = run.publish()
        splits = run.facts.splits
    rows = {path.name: path.read_text().splitlines() for path in folder.glob("out/part-*")}
    counts = [(each.taken, each.emitted, each.filtered, each.dead) for each in result.stages]
    letters = [(each.stage, each.partition, each.operator, each.error, each.record()) for each in result.letters]
    return result.front["in"], {
        "rows": rows,
        "counts": counts,
        "letters": sorted(letters, key=repr),
        "splits": splits,
    }


def some_text(folder: Path) -> tuple[Any, Any, Any]:
    """One file of three blocks, with lines so long that they lie across their borders."""
    lines = [f"{number % 7} {number} " + "ä" * (7_000 + number % 13) for number in range(1_300)]
    (folder / "a b%20[1].txt").write_text("\n".join(lines) + "\n\nno end")
    return (
        read.text(folder / "a b%20[[]1].txt"),
        lambda lines: lines.filter(itself().starts_with("3"), name="three"),
        len,
    )


def some_csv(folder: Path) -> tuple[Any, Any, Any]:
    """Two files, with rows that Python gives up, and such that it takes otherwise than Spark."""
    odd = ["", "k1,5", '"k,2",7,2,x', "k3,x,1,x", "k4,_1,1,x", " ", "k5, 7,1,x", "k6,0,1,x", "k7,,1,x", "k8,7,1,\udcff"]
    for number in range(2):
        rows = [f"k{row % 5},{row % 9},{row / 4},t{row}" for row in range(200)]
        mixed = [line for place, row in enumerate(rows) for line in (row, *odd[place % 37 : place % 37 + 1])]
        text = "\n" * number + "k,n,share,t\r\n" + "\r\n".join(mixed)
        (folder / f"{number}.csv").write_bytes(text.encode("utf-8", "surrogateescape"))

    def filtered(rows: Stream) -> Stream:
        known = rows.filter(col("n").is_not_null(), name="known").map(
            record(k=col("k"), t=col("t"), left=60 // col("n")), name="left"
        )
        return known.filter(col("left") < 9, name="few").filter(lambda value: value["t"] != "t7", name="not_7")

    types = {"k": "text", "n": "int", "share": "float", "t": "text"}
    return read.csv(folder, types=types), filtered, lambda value: value["k"]


def some_parquet(folder: Path) -> tuple[Any, Any, Any]:
    rows = range(3_000)
    columns = {
        "k": pa.array([f"k{row % 4}" for row in rows]),
        "n": pa.array([row % 100 or None for row in rows], pa.int32()),
        "deep": pa.array([float(row) for row in rows], pa.float32()),
    }
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=700)
    pq.write_table(pa.table(columns).slice(5, 900), folder / "b.parquet")
    return read.parquet(folder), lambda rows: rows.filter(col("n") < 4, name="low"), lambda value: value["k"]


@pytest.mark.parametrize("some", [some_text, some_csv, some_parquet])
def test_records_come_as_if_python_had_filtered_all(spark: Any, tmp_path: Path, some: Any) -> None:
    (tmp_path / "in").mkdir()
    flow = a_flow(*some(tmp_path / "in"))

    front, found = told(spark, flow, tmp_path / "front", 0)
    plain, expected = told(spark, flow, tmp_path / "plain", NEVER)

    assert (front, plain) == ("", f"it has less than {NEVER:,} bytes")
    assert found == expected
    assert sum(map(len, found["rows"].values())) > 20
    assert bool(found["letters"]) == (some is some_csv)
    assert len(found["splits"]["in"]) == (3 if some is some_text else 2)


def test_spark_drops_what_is_certain_to_be_dropped_and_nothing_else(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('k,n\n\nx,1\nx,2\n"y",1\nz,\nx,1\n')
    source = read.csv(tmp_path / "a.csv", types={"n": "int"})
    graph = a_flow(source, lambda rows: rows.filter(col("n") == 2, name="two"), len).graph()
    files, limits = open_files(source), Limits()
    front = fronts.front_of(graph, compile_plan(graph, 2, limits).stage(0), files, limits)

    rows = fronts.kept(spark, front, files).collect()

    assert [row["number"] for row in rows] == [0, 3, 4]
    assert {(row["path"], row["start"]) for row in rows} == {(f"file://{tmp_path}/a.csv", 0)}


def test_a_task_reads_one_block_and_that_of_the_live_engine(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "b.txt").write_text("b\n")
    task: Any = None
    front = FrontTask(task, FilePortions.of(open_files(read.text(tmp_path))))

    def rows(*blocks: tuple[str, int]) -> pa.RecordBatch:
        columns = [
            [f"file://{tmp_path}/{name}" for name, _ in blocks],
            [start for _, start in blocks],
            [0] * len(blocks),
        ]
        return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], ["path", "start", "number"])

    with pytest.raises(TaskFault, match="two blocks"):
        list(front.run(iter([rows(("a.txt", 0)), rows(("b.txt", 0))])))
    with pytest.raises(TaskFault, match="from byte 7, and was asked for others"):
        list(front.run(iter([rows(("a.txt", 7))])))


def not_in_front(source: Any, build: Callable[[Stream], Stream], **options: Any) -> str:
    """Why Python filters all."""
    flow = a_flow(source, build, lambda value: value["k"])
    with BulkRun(flow, BulkOptions(partitions=2, **{"native_bytes": 0, **options})) as run:
        run.prepare()
        assert not run.is_native
        return run.front["in"]


def test_what_spark_does_not_filter_is_filtered_by_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.csv").write_text("k,n\n" + "".join(f"x,{row % 10}\n" for row in range(100)))
    (tmp_path / "in.json").write_text('{"k": 1}\n')
    source = read.csv(tmp_path / "in.csv")

    def few(rows: Stream) -> Stream:
        return rows.filter(col("n") < 3, name="few")

    def with_sink(rows: Stream) -> Stream:
        rows.sink(write.jsonl(tmp_path / "rows"), name="rows")
        return few(rows)

    assert not_in_front(source, lambda rows: rows) == "there is no filter in front that is an expression"
    assert "no expression" in not_in_front(source, lambda rows: rows.filter(lambda row: row["n"] < 3, name="f"))
    assert "no expression" in not_in_front(source, lambda rows: few(rows.map(lambda row: row, name="m")))
    assert "no truth value" in not_in_front(source, lambda rows: rows.filter(col("n"), name="f"))
    assert "keep most" in not_in_front(source, lambda rows: rows.filter(col("n") < 7, name="f"))
    assert "keep most" in not_in_front(source, lambda rows: rows.filter(1 // (col("n") - col("n")) < 7, name="f"))
    assert "to a sink" in not_in_front(source, with_sink)
    assert "no declared types" in not_in_front(read.json(tmp_path / "in.json"), few)
    assert "no source of files" in not_in_front(read.iterable([1]), few)
    assert "state of a live job" in not_in_front(source, few, keeps_state=True)
    assert "less than" in not_in_front(source, few, native_bytes=NEVER)
    monkeypatch.setattr(fronts, "_LEAST_BLOCK", 1 << 20)
    assert "small" in not_in_front(source, few)
