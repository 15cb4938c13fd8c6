"""DataFrame operators on a session: columns and plain values, what is refused and how it is told, live and in bulk."""

from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline import Pipeline, fail, read, write
from pipeline.cli.exits import Exit
from pipeline.cli.main import run_command
from pipeline.errors import EncodingError, EnvironmentFault, FrameError, PipelineError
from pipeline.graph import Transform
from pipeline.kernel.faults import OperatorError
from pipeline.loader import load_graph
from pipeline.plan import compile_plan
from pipeline.records import Batch
from pipeline.schemas import parse_schema
from pipeline.settings import Limits
from pipeline.spark.bulk.engine import BulkOptions, run_bulk
from pipeline.spark.transforms import Transforms
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from tests.e2e.chaos import wait_until
from tests.runtime.harness import HandClock, LocalJob

pytestmark = pytest.mark.timeout(600)

Fn = Callable[[Any], Any]


def ready(spark: Any, *nodes: Transform) -> Transforms:
    transforms = Transforms(nodes, opener=lambda: spark)
    wait_until(transforms.is_ready, "Spark is there", 120.0)
    return transforms


def run(spark: Any, fn: Fn, schema: str, values: list[Any], batch: int = 8_000) -> list[Any]:
    """What the operator `op` makes of these records."""
    node = Transform("op", ("in",), fn, parse_schema(schema, "op"), batch)
    return ready(spark, node).runners["op"](Batch(values)).values


def failure(spark: Any, fn: Fn, schema: str = "n long", values: list[Any] | None = None) -> BaseException:
    """Why it fails, as a dead letter tells it."""
    with pytest.raises(OperatorError) as caught:
        run(spark, fn, schema, [{"n": 1}] if values is None else values)
    assert caught.value.operator == "op"
    return caught.value.cause


def same(frame: Any) -> Any:
    return frame


EVERYTHING = (
    "yes boolean, a tinyint, b smallint, c int, d bigint, e float, f double, text string, raw binary, day date,"
    " at timestamp, there timestamp_ntz, price decimal(10,2), items array<int>, names map<string,string>,"
    " inner struct<x: int, y: array<string>>, `a.b c` int"
)
RECORD = {
    "yes": True,
    "a": -1,
    "b": 2,
    "c": 3,
    "d": 2**63 - 1,
    "e": 0.5,
    "f": 0.1,
    "text": "é𝄞",
    "raw": b"\0\xff",
    "day": "2024-02-29",
    "at": datetime(2024, 2, 29, 12, 30, 1, 5, UTC),
    "there": datetime(1969, 1, 1, tzinfo=UTC),
    "price": "12.50",
    "items": [1, None, 2],
    "names": {"k": "v", "z": None},
    "inner": {"x": 1, "y": ["a"]},
    "a.b c": 7,
}


def test_records_come_back_as_they_went_in_whatever_the_type(spark: Any) -> None:
    nothing = dict.fromkeys(RECORD)

    assert run(spark, same, EVERYTHING, [RECORD, nothing, {}, {**RECORD, "more": 1}]) == [
        RECORD,
        nothing,
        nothing,
        RECORD,
    ]


def test_rows_keep_their_order_and_are_cut_into_frames_of_the_given_size(spark: Any) -> None:
    sizes: list[int] = []

    def doubled(frame: Any) -> Any:
        sizes.append(frame.count())
        return frame.selectExpr("n * 2 as n", "explode(array(1, 2)) as copy")

    made = run(spark, doubled, "n long", [{"n": number} for number in range(25)], batch=10)

    assert made == [{"n": 2 * number, "copy": copy} for number in range(25) for copy in (1, 2)]
    assert sizes == [10, 10, 5]


def test_a_join_with_a_table_a_column_without_a_type_and_no_rows_at_all(spark: Any) -> None:
    def named(frame: Any) -> Any:
        names = frame.sparkSession.createDataFrame(
            [("AA", "American"), ("UA", "United")], "carrier string, name string"
        )
        return frame.join(names, "carrier").selectExpr("name", "n", "null as nothing")

    values = [{"carrier": carrier, "n": number} for number, carrier in enumerate(["AA", "XX", "UA"])]

    made = run(spark, named, "carrier string, n int", values)

    assert sorted(made, key=lambda row: row["n"]) == [
        {"name": "American", "n": 0, "nothing": None},
        {"name": "United", "n": 2, "nothing": None},
    ]
    assert run(spark, named, "carrier string, n int", values[1:2]) == []


@pytest.mark.parametrize(
    ("schema", "bad", "words"),
    [
        ("n long", {"n": "x"}, "column 'n' is int64, and the value is 'x'"),
        ("n long", {"n": 1.5}, "column 'n' is int64, and the value is 1.5"),
        ("n int", {"n": 2**31}, "column 'n' is int32, and the value is 2147483648"),
        ("n string", {"n": 5}, "column 'n' is string, and the value is 5"),
        ("n date", {"n": "tomorrow"}, "column 'n' is date32[day], and the value is 'tomorrow'"),
        ("n long not null", {"m": 1}, "column 'n' is NOT NULL, and the record has no value there"),
        ("n long, m string", [1], "the record is [1], which has no columns n, m"),
    ],
)
def test_a_record_that_does_not_fit_is_named(spark: Any, schema: str, bad: Any, words: str) -> None:
    good = {"n": None if "not" not in schema else 1}

    with pytest.raises(EncodingError) as caught:
        run(spark, same, schema, [good, bad, good])

    assert str(caught.value) == words
    assert caught.value.index == 1


def test_what_the_function_does_wrong_is_told_in_a_line(spark: Any) -> None:
    def breaks(_frame: Any) -> Any:
        raise KeyError("carrier")

    def twice(frame: Any) -> Any:
        return frame.join(frame, frame.n == frame.n)

    def udf(frame: Any) -> Any:
        from pyspark.sql.functions import udf

        return frame.select(udf(lambda n: n // 0, "long")("n").alias("n"))

    assert isinstance(failure(spark, breaks), KeyError)
    assert str(failure(spark, lambda frame: frame.count())) == "it returned int, not a DataFrame"
    assert str(failure(spark, lambda frame: frame.select())) == "it returned no column"
    assert str(failure(spark, twice)) == "it returned two columns called 'n'"
    interval = failure(spark, lambda frame: frame.selectExpr("interval 1 day as gap"))
    assert str(interval) == "it returned the column 'gap' of the type interval day, which no record can hold"
    assert isinstance(interval, FrameError)
    assert interval.hint == "cast it, or leave it out: .drop('gap')"
    for wrong, start in (
        (lambda frame: frame.select("m"), "AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column"),
        (
            lambda frame: frame.selectExpr("raise_error('no') as n"),
            "SparkRuntimeException: [USER_RAISED_EXCEPTION",
        ),
        (udf, "PythonException: ZeroDivisionError: "),
    ):
        cause = failure(spark, wrong)
        assert str(cause).startswith(start), str(cause)
        assert "\n" not in str(cause)
    assert "test_transforms.py" in "".join(traceback.format_exception(cause))


def test_a_stream_with_event_times_is_refused(spark: Any) -> None:
    node = Transform("op", ("in",), same, parse_schema("n long", "op"), 10)

    with pytest.raises(PipelineError, match="operator 'op' works on DataFrames, and its stream has event times"):
        ready(spark, node).runners["op"](Batch([{"n": 1}], None, [5]))


# in a worker


def a_flow(fn: Fn, **options: Any) -> Pipeline:
    flow = Pipeline("frames")
    source = flow.source(read.iterable([]), name="in", **options)
    source.transform(fn, schema="n long", name="op").sink(write.stream("out"), name="out")
    return flow


def thirds(frame: Any) -> Any:
    return frame.selectExpr("assert_true(n != 13) as ok", "n div 3 as third").where("third % 2 = 0").drop("ok")


def transforms_of(flow: Pipeline, opener: Callable[[], Any]) -> Transforms:
    return Transforms(flow.graph().nodes, opener=opener)


def test_a_worker_waits_for_spark_without_a_record_in_hand(spark: Any, redis_url: str) -> None:
    may_start, clock = threading.Event(), HandClock()

    def opener() -> Any:
        may_start.wait(60.0)
        return spark

    flow = a_flow(thirds)
    transforms = transforms_of(flow, opener)
    with LocalJob(redis_url, flow, partitions=1, clock=clock, transforms=transforms) as job:
        job.send([{"n": number} for number in range(12)])
        job.assign()
        assert job.worker().hand.report(clock.now)["hand"]["0.0"] == {
            "position": "1-0/0",
            "since_ms": 0,
            "why": "backoff",
            "reason": "Spark starts",
        }
        assert job.worker().hand.held_longer(1e9, 60.0) == ""

        may_start.set()
        wait_until(transforms.is_ready, "Spark is there", 60.0)
        clock.now += max(job.pauses())
        job.look()
        job.end_input()
        job.run_until_idle()

        assert [value for _, value in job.outputs["out"]] == [{"third": n // 3} for n in range(12) if n // 3 % 2 == 0]


def test_a_worker_of_other_stages_makes_no_session(redis_url: str) -> None:
    asked = threading.Event()

    def opener() -> Any:
        asked.set()
        raise EnvironmentFault("there is no Spark here")

    flow = Pipeline("frames")
    hop = flow.source(read.iterable([]), name="in").key_by(lambda row: row["n"], name="by").last(name="last")
    other = flow.source(read.iterable([]), name="other")
    hop.union(other, name="both").transform(same, schema="n long", name="op").sink(write.stream("out"), name="out")
    counted = other.key_by(lambda row: row["n"], name="plain").last(name="plain_last")
    counted.sink(write.stream("plain"), name="plain_out")
    with LocalJob(redis_url, flow, partitions=1, transforms=transforms_of(flow, opener)) as job:
        needing = {stage.index for stage in job.plan.stages if "op" in stage.nodes}
        assert {job.plan.stage(index).name for index in needing} == {"by", "other"}
        job.assign(places=[place for place in job.places if place[0] not in needing])
        job.send([{"n": 1}])
        job.run_until_idle()

        assert not asked.is_set()

        job.assign(places=[place for place in job.places if place[0] in needing])
        wait_until(asked.is_set, "the session is made")


def test_a_record_that_fails_is_a_dead_letter_and_all_others_count(spark: Any, redis_url: str) -> None:
    flow = a_flow(thirds)
    transforms = transforms_of(flow, lambda: spark)
    wait_until(transforms.is_ready, "Spark is there", 60.0)
    values: list[Any] = [{"n": number} for number in range(30)]
    values[5] = {"n": "five"}
    with LocalJob(redis_url, flow, partitions=1, transforms=transforms) as job:
        job.assign()
        job.send(values)
        job.end_input()
        job.run_until_idle()

        letters = [(letter.operator, letter.error) for letter in job.letters()]
        assert letters == [
            ("op", "EncodingError: column 'n' is int64, and the value is 'five'"),
            ("op", letters[1][1]),
        ]
        assert "13" in letters[1][1]
        expected = [n // 3 for n in range(30) if n not in (5, 13) and n // 3 % 2 == 0]
        assert [value["third"] for _, value in job.outputs["out"]] == expected


def test_a_worker_without_java_fails_the_job_with_what_is_missing(redis_url: str) -> None:
    def opener() -> Any:
        raise EnvironmentFault("Spark needs Java 17 or newer", hint="install it")

    clock, flow = HandClock(), a_flow(same)
    with LocalJob(redis_url, flow, partitions=1, clock=clock, transforms=transforms_of(flow, opener)) as job:
        job.assign()

        def fails() -> bool:
            clock.now += 1.0
            job.look()
            return job.jobs.state(job.job).value == "failed"

        wait_until(fails, "the job has failed")
        assert "Spark needs Java 17" in str(job.jobs.read(job.job))


def test_a_connect_server_that_is_away_is_waited_for() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        check_away(nobody.getsockname()[1])


def check_away(port: int) -> None:
    transforms = Transforms(a_flow(same).graph().nodes, remote=f"sc://127.0.0.1:{port}")

    wait_until(lambda: not transforms.is_ready() and "does not answer" in transforms.waits_for, "it has asked", 60.0)

    assert not transforms.is_ready()


# commands

FLOW = """
from pipeline import Pipeline, read, write

flow = Pipeline("frames")
stream = flow.source(read.iterable([{"n": 1}]), name="in").transform(lambda frame: frame, schema="n long", name="op")
stream.sink(write.jsonl("out"), name="out")
"""


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "words"),
    [
        (("--engine", "spark", "--stream"), {}, Exit.USAGE, "a streaming query, whose tasks hold no session,"),
        (
            ("--autoscale", "1..2", "--burst-behind", "60"),
            {},
            Exit.USAGE,
            "a burst, whose tasks hold no session, cannot",
        ),
        ((), {"CELERIAC_SPARK_REMOTE": "host:15002"}, Exit.USAGE, "'host:15002' is no Connect server"),
    ],
)
def test_a_run_that_cannot_be_is_told_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    variables: dict[str, str],
    code: Exit,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "flow.py").write_text(FLOW)

    found = run_command(["run", "flow.py", *arguments])

    said = capsys.readouterr().err
    assert (found, words in said) == (code, True), said
    assert [path.name for path in tmp_path.iterdir()] == ["flow.py"]


def test_a_worker_or_a_burst_on_spark_refuses_the_job(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CELERIAC_REDIS", redis_url)
    (tmp_path / "flow.py").write_text(FLOW)
    flow = load_graph("flow.py")
    jobs = JobStore(Scripts(connect(redis_url)))
    jobs.create("j", compile_plan(flow, 1, Limits()))

    for who, command in (
        ("a streaming query", ["worker", "j", "flow.py", "--engine", "spark"]),
        ("a burst", ["burst", "j", "flow.py", "--dry-run"]),
    ):
        assert run_command(command) == Exit.USAGE
        assert f"operator 'op' works on DataFrames, and {who}, whose tasks" in capsys.readouterr().err


# in bulk


def test_in_bulk_the_function_sees_all_records_at_once_and_they_are_counted(spark: Any) -> None:
    seen: list[int] = []
    names = ("spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage")
    settings: list[Any] = []

    def counted(frame: Any) -> Any:
        seen.append(frame.count())
        settings.extend(frame.sparkSession.conf.get(name) for name in names)
        return frame.where("n % 2 = 0")

    flow = Pipeline("bulk")
    values: list[Any] = [*({"n": number} for number in range(1000)), {"n": "bad"}]
    stream = flow.source(read.iterable(values), name="in").transform(counted, schema="n long", name="op")
    stream.map(lambda row: row["n"], name="n").sink(write.stream("out"), name="out")
    given: list[int] = []

    result = run_bulk(flow, spark, BulkOptions(takers={"out": lambda batch: given.extend(batch.values)}))

    assert sorted(given) == list(range(0, 1000, 2))
    assert seen == [1000]
    assert settings == [spark.conf.get(name) for name in names] == ["true", "true"]
    assert [
        (stage.name, counts.taken, counts.emitted, counts.dead)
        for stage, counts in zip(result.plan.stages, result.stages, strict=True)
    ] == [("in", 1001, 1000, 1), ("op", 500, 500, 0)]
    (letter,) = result.letters
    assert (letter.operator, letter.record().values) == ("op", [{"n": "bad"}])
    assert letter.error == "EncodingError: column 'n' is int64, and the value is 'bad'"


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda frame: frame.select("m"), "the operator 'op' failed: AnalysisException: [UNRESOLVED_COLUMN"),
        (lambda _frame: 1 // 0, "the operator 'op' failed: ZeroDivisionError: "),
        (lambda frame: frame.selectExpr("raise_error('no') as n"), "the operator 'op' failed: SparkRuntimeException"),
        (lambda _frame: None, "the operator 'op' failed: it returned NoneType, not a DataFrame"),
    ],
)
def test_in_bulk_a_function_that_fails_fails_the_run(spark: Any, fn: Fn, words: str) -> None:
    flow = Pipeline("bulk", on_error=fail())
    flow.source(read.iterable([{"n": 1}]), name="in").transform(fn, schema="n long", name="op").sink(
        write.stream("out"), name="out"
    )

    with pytest.raises(FrameError) as caught:
        run_bulk(flow, spark, BulkOptions(takers={"out": print}))

    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
