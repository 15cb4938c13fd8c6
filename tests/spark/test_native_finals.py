"""Final aggregates that Spark computes itself: the results and counts of Python, or none of them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from pipeline import Pipeline, col, count, itself, maximum, mean, minimum, read, record, together, total, write
from pipeline.api import KeyedStream, Stream
from pipeline.cli.main import run_command
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.sources.layout import open_files
from pipeline.spark.bulk import engine, finalrows
from pipeline.spark.bulk.engine import BulkOptions, BulkResult, BulkRun, run_bulk
from pipeline.spark.bulk.finals import finals_of, grouped, levelled

pytestmark = pytest.mark.timeout(300)

NEVER = 1 << 60


def a_flow(source: Any, build: Callable[[Stream], KeyedStream], out: Path | str = "/tmp/never") -> Pipeline:
    flow = Pipeline("finals")
    build(flow.source(source, name="in")).sink(write.jsonl(out), name="out")
    return flow


def by_word(lines: Stream) -> KeyedStream:
    return lines.key_by(itself(), name="by").aggregate(count(), name="counted").last(name="end")


def told(spark: Any, flow: Pipeline, folder: Path, native_bytes: int, **options: Any) -> tuple[BulkResult, list[Any]]:
    """The result of a run, and the rows of its files, each with the name of its file: these are by partition."""
    given = BulkOptions(partitions=3, results=folder, scratch=folder.parent, native_bytes=native_bytes, **options)
    result = run_bulk(flow, spark, given)
    files = {str(path.relative_to(folder)): path.read_text().splitlines() for path in folder.glob("*/part-*")}
    rows = [(name, json.loads(line)) for name, lines in files.items() for line in lines]
    return result, sorted(rows, key=json.dumps)


def facts(result: BulkResult) -> list[tuple[Any, ...]]:
    """What the stages have counted, and the dead letters."""
    counts = [(each.taken, each.emitted, each.filtered, each.dead, sum(each.sunk.values())) for each in result.stages]
    letters = [(each.partition, each.operator, each.kind, each.error, each.record()) for each in result.letters]
    return [*counts, *sorted(letters, key=repr)]


def some_csv(folder: Path, rows: int) -> Path:
    """Two files with a blank line, a mark, quotes nowhere, missing values, and letters of all kinds."""
    folder.mkdir(parents=True)
    names = ["ärger", "", "NA", "a b", "\N{GRINNING FACE}", "Ω", "x'y", "\tz"]
    for number in range(2):
        lines = [
            f"{names[(row * 7 + number) % 8]};{(row * 37) % 100 - 50 if row % 9 else ''};{row / 8};{row % 3}"
            for row in range(rows)
        ]
        text = "name;delay;share;group\r\n" + "\r\n".join(lines) + ("" if number else "\n\n  \n")
        (folder / f"{number}.csv").write_bytes(b"\xef\xbb\xbf" * number + text.encode())
    return folder


def some_parquet(folder: Path, rows: int) -> Path:
    """A column of each type, below a folder that Spark would take for a column."""
    place = folder / "group=9"
    place.mkdir(parents=True)
    columns = {
        "small": pa.array([row % 200 - 100 for row in range(rows)], pa.int8()),
        "group": pa.array([row % 4 or None for row in range(rows)], pa.int32()),
        "big": pa.array([(-1) ** row * (2**53 + row) for row in range(rows)], pa.int64()),
        "part": pa.array([row / 3 for row in range(rows)], pa.float32()),
        "whole": pa.array([float(row) for row in range(rows)], pa.float64()),
        "is.odd": pa.array([row % 2 == 1 for row in range(rows)], pa.bool_()),
        "name": pa.array([f"ñ{row % 5}" for row in range(rows)], pa.string()).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), place / "some [1].parquet", row_group_size=rows // 3)
    return place


def of_csv(rows: Stream) -> KeyedStream:
    def behind(value: dict[str, Any]) -> dict[str, Any]:
        """Fails for some keys, and leaves none as it was."""
        number = value.pop("n")
        if value["low"] < 0.5:
            raise ValueError(f"{number} values")
        return {**value, "two": number * 2}

    kept = rows.filter(col("delay").is_not_null() & (col("name") != "a b"), name="known")
    wide = kept.map(
        record(name=col("name").strip(), late=col("delay") // 7 * 3, rest=-col("delay") % 7, share=col("share") * 2),
        name="wide",
    )
    late = wide.filter(col("late") + col("rest") > -60, name="not_early").filter(col("name").length() < 5, name="short")
    counted = late.key_by("name", name="by").aggregate(
        n=count(), sum=total("late"), mean=mean(col("rest") + 1), low=minimum("share"), high=maximum("late"), name="agg"
    )
    return counted.last(name="end").map(behind, name="behind")


def of_parquet(rows: Stream) -> KeyedStream:
    known = rows.filter(col("group").is_not_null() & ~col("is.odd") | (col("part") >= 10), name="known")
    keyed = known.key_by(together(col("name").strip().otherwise("-"), col("small") % 3, "x"), name="by")
    return keyed.aggregate(
        sum=total(abs(col("big")) // 1000), low=minimum(col("part") / 4), high=maximum("name"), name="agg"
    ).last(name="end")


@pytest.mark.parametrize("kind", ["text", "csv", "parquet"])
def test_what_spark_computes_itself_is_what_python_computes(spark: Any, tmp_path: Path, kind: str) -> None:
    match kind:
        case "text":
            (tmp_path / "in").mkdir()
            for number in range(3):
                lines = [f"w{row % 11 * number}é" for row in range(200)]
                (tmp_path / f"in/{number}.txt").write_text("\r\n".join(lines) + "\n\n")
            source, build = read.text(tmp_path / "in"), by_word
        case "csv":
            source, build = read.csv(some_csv(tmp_path / "in", 400), delimiter=";"), of_csv
        case _:
            columns = ["small", "group", "big", "part", "is.odd", "name"]
            source, build = read.parquet(some_parquet(tmp_path / "in", 600), columns=columns), of_parquet

    native, found = told(spark, a_flow(source, build), tmp_path / "native", 0)
    plain, expected = told(spark, a_flow(source, build), tmp_path / "plain", NEVER)

    assert (native.native, plain.native["in"]) == ({"in": ""}, f"it has less than {NEVER:,} bytes")
    assert len(found) > 2
    assert found == expected
    assert facts(native) == facts(plain)
    assert bool(native.letters) == (kind == "csv")


def test_records_in_doubt_are_all_computed_by_python(spark: Any, tmp_path: Path) -> None:
    """One pipeline of two sources: the one is native, and of the other nothing is that Spark has computed."""
    some_csv(tmp_path / "good", 50)
    some_csv(tmp_path / "bad", 50)
    with (tmp_path / "bad/2.csv").open("w") as file:
        file.write('name;delay;share;group\n"ärger";x;1;1\nno;1\n')

    def flow() -> Pipeline:
        made = Pipeline("two")
        for name in ("good", "bad"):
            rows = made.source(read.csv(tmp_path / name, delimiter=";"), name=name)
            ended = rows.key_by(col("name", None).otherwise("none"), name=f"by_{name}").aggregate(
                n=count(), low=minimum(col("delay").otherwise(0)), name=f"agg_{name}"
            )
            ended.last(name=f"end_{name}").sink(write.jsonl(f"/tmp/never/{name}"), name=f"out_{name}")
        return made

    native, found = told(spark, flow(), tmp_path / "native", 0)
    plain, expected = told(spark, flow(), tmp_path / "plain", NEVER)

    assert native.native == {"good": "", "bad": "Spark may compute 2 of its records otherwise than Python"}
    assert found == expected
    assert facts(native) == facts(plain)
    assert len(native.letters) == 2


HEAD = b"k,n,f,t\n"
SOUND = b"a,1,1.5,x\nb,2,2.5,y\n"


def summed(rows: Stream) -> KeyedStream:
    return rows.key_by("k", name="by").aggregate(n=total("n"), f=minimum("f"), name="agg").last(name="end")


def quotients(rows: Stream) -> KeyedStream:
    kept = rows.filter((col("n") != 0) | (col("k") != "dropped"), name="kept")
    wide = kept.map(record(k=col("k"), n=60 // col("n"), t=col("t").upper()), name="wide")
    return wide.key_by("k", name="by").aggregate(count(), name="agg").last(name="end")


DOUBTFUL = {
    "sound": "sound,1,1.5,x\nsound,-1,.5e1,\nsound,+3,2,ä\nsound,000000000000000000007,1,a b",
    '"quoted"': '"quoted",3,1,z',
    "no number": "no number,3.0,1,z",
    "white space": "white space, 3,1,z",
    "a control character": "a control character,3\x7f,1,z",
    "underscore": "underscore,1_0,1,z",
    "digits that are not of ASCII": "digits that are not of ASCII,\u0663,1,z",
    "infinite": "infinite,3,inf,z",
    "too few fields": "too few fields,3,1",
    "too many fields": "too many fields,3,1,z,",
    "no text": b"no text,3,1,\xff",
    "no sum": "no sum,NA,1,z",
    "no least": "no least,3,,z",
    "signed zero": "signed zero,3,-0.0,z",
    "long": "long,3,1," + "z" * 200_000,
    "sums of more than 64 bits": "\n".join(
        f"sums of more than 64 bits,{sign}900000000000000000,1," for sign in ("", "-") for _ in range(6)
    ),
    None: "NA,3,1,z",
}
"""Key -> rows, each of which but for the first ones is in doubt."""


def doubts_of(spark: Any, path: Path, build: Callable[[Stream], KeyedStream]) -> tuple[dict[Any, int], set[Any], int]:
    """How many rows are in doubt by key, whose sums are, and how many heads were met that should not be there."""
    spec = read.csv(path, types={"n": "int", "f": "float", "t": "text", "k": "text"})
    graph = a_flow(spec, build).graph()
    plan = compile_plan(graph, 2, Limits())
    source = open_files(spec)
    finals = finals_of(graph, plan, plan.stage(0), source)
    frame, headers = levelled(spark, finals, source)
    rows = frame.collect()
    levels = {row["k"]: row["level"] for row in rows if row["level"] in (finalrows.DOUBTFUL, finalrows.ARRIVED)}
    doubts = Counter(row["k"] for row in rows if row["level"] == finalrows.DOUBTFUL)
    lost = grouped(frame, finals).where(f"level = {finalrows.DOUBTFUL} and k is not null").collect()
    heads = sum(row["level"] == finalrows.HEAD for row in rows)
    return {key: doubts[key] for key in levels}, {row["k"] for row in lost}, heads - headers


def test_lines_that_are_no_text_or_too_long_are_in_doubt_where_they_are_only_counted(
    spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\na\n\xff\n\xff\n\n" + b"x" * 400_000 + b"\n" + b"y" * 400_000)
    spec = read.text(tmp_path / "a.txt")
    graph = a_flow(spec, by_word).graph()
    plan = compile_plan(graph, 2, Limits(record_bytes=1_000_000))
    source = open_files(spec)
    finals = finals_of(graph, plan, plan.stage(0), source)

    frame, _ = levelled(spark, finals, source)
    rows = grouped(frame, finals).selectExpr("level", "substr(k, 1, 1) as k", "records").collect()

    assert finals.counts_lines
    sound = Counter({row["k"]: row["records"] for row in rows if row["level"] == finalrows.ARRIVED})
    assert sound == {"a": 2, "": 1}
    assert sorted(row["records"] for row in rows if row["level"] == finalrows.DOUBTFUL) == [1, 1, 2]


def not_native(source: Any, build: Callable[[Stream], KeyedStream], **options: Any) -> str:
    """Why Python runs it."""
    with BulkRun(a_flow(source, build), BulkOptions(partitions=2, native_bytes=0, **options)) as run:
        run.prepare()
        assert not run.is_native
        return run.native["in"]


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda rows: rows.filter(lambda row: row["n"]).key_by("k").aggregate(count()).last(), "no expression"),
        (lambda rows: rows.flat_map(lambda row: [row]).key_by("k").aggregate(count()).last(), "more than a filter"),
        (
            lambda rows: rows.transform(lambda f: f, schema="k string").key_by("k").aggregate(count()).last(),
            "more than",
        ),
        (lambda rows: rows.filter(col("n")).key_by("k").aggregate(count()).last(), "no truth value"),
        (lambda rows: rows.key_by("missing").aggregate(count()).last(), "each record fails"),
        (lambda rows: rows.key_by("f").aggregate(count()).last(), "texts and whole numbers"),
        (lambda rows: rows.key_by("k").aggregate(count()), "running values"),
        (lambda rows: rows.key_by("k").reduce(lambda _, two: two).last(), "no aggregate"),
        (lambda rows: rows.key_by("k").aggregate(total("f")).last(), "total('f') of float is left to Python"),
        (lambda rows: rows.key_by("k").aggregate(mean("f")).last(), "of float is left to Python"),
        (lambda rows: rows.key_by("k").aggregate(total("t")).last(), "of text is left to Python"),
        (lambda rows: rows.key_by("k").aggregate(total(lambda row: row["n"])).last(), "no expression"),
        (
            lambda rows: rows.key_by("k").aggregate(count()).last().key_by(itself()).aggregate(count()).last(),
            "another key_by",
        ),
    ],
)
def test_what_is_no_aggregate_of_expressions_is_run_by_python(
    tmp_path: Path, build: Callable[[Stream], KeyedStream], why: str
) -> None:
    (tmp_path / "in.csv").write_bytes(HEAD + SOUND)

    assert why in not_native(read.csv(tmp_path / "in.csv"), build)


def test_what_spark_does_not_read_as_python_does_is_read_by_python(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"k": 1}\n')
    (tmp_path / "_in.txt").write_text("a\n")
    with gzip.open(tmp_path / "in.txt.gz", "wb") as file:
        file.write(b"a\n")
    times = pa.table({"k": [1], "at": pa.array([0], pa.timestamp("us"))})
    pq.write_table(times, tmp_path / "in.parquet")
    write_deltalake(tmp_path / "table", pa.table({"k": ["a"], "n": [1]}), partition_by=["k"])

    assert "no declared types" in not_native(read.json(tmp_path / "in.json"), by_word)
    assert "passes over _in.txt" in not_native(read.text(tmp_path / "_in.txt"), by_word)
    assert "compressed" in not_native(read.text(tmp_path / "in.txt.gz"), by_word)
    assert "'at' is of the type" in not_native(read.parquet(tmp_path / "in.parquet"), by_word)
    assert "the log of its table" in not_native(read.delta(tmp_path / "table"), by_word)
    assert "no source of files" in not_native(read.iterable([1]), by_word)


def test_runs_that_begin_or_end_with_the_state_of_a_live_job_are_run_by_python(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\n")

    for options in ({"keeps_state": True}, {"ranges": {"in": {}}}):
        assert "state of a live job" in not_native(read.text(tmp_path / "in.txt"), by_word, **options)


def test_records_that_also_go_elsewhere_are_read_by_python(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\n")

    def build(lines: Stream) -> KeyedStream:
        lines.sink(write.jsonl(tmp_path / "lines"), name="lines")
        return by_word(lines)

    assert "or to a sink" in not_native(read.text(tmp_path / "in.txt"), build)


def test_the_command_says_so_and_does_not_start_the_jvm_with_its_fast_compiler_only(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("a\nb\na\n")
    (tmp_path / "flow.py").write_text(
        "from pipeline import Pipeline, count, itself, read, write\n"
        'flow = Pipeline("words")\n'
        'keyed = flow.source(read.text("in.txt"), name="lines").filter(itself() != "b", name="no_b").key_by(itself())\n'
        'keyed.aggregate(count()).last().sink(write.jsonl("out"), name="out")\n'
    )
    started: list[bool] = []

    def open_session(*_: Any, starts_fast: bool) -> Any:
        started.append(starts_fast)
        return spark

    monkeypatch.setattr(engine, "BulkOptions", partial(BulkOptions, native_bytes=0))
    monkeypatch.setattr(engine, "open_session", open_session)

    code = run_command(["run", "flow.py", "--engine", "spark", "--partitions", "2"])

    said = capsys.readouterr()
    assert (code, started) == (0, [False]), said.err
    assert "  stage lines: in 3, out 2, filtered 1, by Spark itself\n" in said.err
    rows = [json.loads(line) for path in (tmp_path / "out").glob("part-*") for line in path.read_text().splitlines()]
    assert rows == [{"key": "a", "value": 2}]
