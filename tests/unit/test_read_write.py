"""read and write make specs of plain data, and refuse what could not be stored or read again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline import read, write
from pipeline.errors import PipelineError
from pipeline.graph import SinkSpec, SourceSpec
from pipeline.plan import is_endless, is_followed


def test_read_makes_specs_with_exactly_these_options() -> None:
    assert read.text("/d/a.txt") == SourceSpec("text", "/d/a.txt", {"reader": "auto"})
    assert read.json("/d", reader="spark") == SourceSpec("json", "/d", {"reader": "spark"})
    assert read.parquet("/d/*.parquet", columns=["a"], reader="local") == SourceSpec(
        "parquet", "/d/*.parquet", {"columns": ["a"], "reader": "local"}
    )
    assert read.csv("/d/a.csv") == SourceSpec(
        "csv",
        "/d/a.csv",
        {"columns": None, "delimiter": ",", "null_values": ["", "NA"], "types": None, "reader": "auto"},
    )
    assert read.csv("/d", ("a", "b"), "\t", ["-"], {"a": "int"}, "local").options == {
        "columns": ["a", "b"],
        "delimiter": "\t",
        "null_values": ["-"],
        "types": {"a": "int"},
        "reader": "local",
    }


def test_write_makes_specs() -> None:
    assert write.console() == SinkSpec("console")
    assert write.stream("results") == SinkSpec("stream", "", {"name": "results"})
    assert write.text("/d/out") == SinkSpec("text", "/d/out")
    assert write.jsonl("/d/out") == SinkSpec("jsonl", "/d/out")
    assert write.csv("/d/out") == SinkSpec("csv", "/d/out")
    assert write.parquet("/d/out") == SinkSpec("parquet", "/d/out", {"writer": "auto"})
    assert write.parquet("/d/out", "spark").options == {"writer": "spark"}


@pytest.mark.parametrize(
    "spec",
    [
        read.text("a"),
        read.csv("a", columns=["x"], types={"x": "float"}),
        read.json("a"),
        read.parquet("a", ["x"]),
        read.iterable([1]),
        write.parquet("a"),
        write.stream("s"),
    ],
)
def test_options_survive_json(spec: SourceSpec | SinkSpec) -> None:
    assert msgspec.json.decode(msgspec.json.encode(spec.options)) == spec.options


MAKERS: list[Callable[[Any], SourceSpec | SinkSpec]] = [
    *(read.text, read.csv, read.json, read.parquet),
    *(write.text, write.jsonl, write.csv, write.parquet),
]


@pytest.mark.parametrize("make", MAKERS)
def test_a_relative_path_counts_from_the_folder_of_the_call(
    make: Callable[[Any], SourceSpec | SinkSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = make("sub/../data/x*")
    by_path = make(Path("data") / "x*")

    monkeypatch.chdir("/")

    assert spec.path == by_path.path == str(Path(os.path.realpath(tmp_path)) / "data" / "x*")


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", None, 3, b"bytes", ["a"], lambda: "a"])
def test_a_bad_path_is_refused(make: Callable[[Any], Any], path: Any) -> None:
    with pytest.raises(PipelineError, match=r"(read|write)\.\w+: .*path"):
        make(path)


def test_an_address_is_no_path() -> None:
    with pytest.raises(PipelineError, match=r"read.text: 's3://bucket/a' is an address, not a path"):
        read.text("s3://bucket/a")


untyped_read: Any = read
untyped_write: Any = write


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: untyped_read.text("a", reader="sparc"),
            "read.text: reader must be one of auto, local, spark, not 'sparc'",
        ),
        (lambda: untyped_read.json("a", reader=None), "read.json: reader must be one of"),
        (lambda: untyped_read.csv("a", reader=["auto"]), "read.csv: reader must be one of"),
        (
            lambda: untyped_read.csv("a", columns="carrier"),
            "read.csv: columns must be a list of text, not 'carrier'",
        ),
        (
            lambda: untyped_read.csv("a", columns=lambda: 1),
            "read.csv: columns must be a list of text, not <function",
        ),
        (lambda: untyped_read.csv("a", columns=[]), "read.csv: columns must name one or more columns"),
        (lambda: untyped_read.csv("a", columns=["x", "x"]), "read.csv: columns must name .* each once"),
        (lambda: untyped_read.parquet("a", columns=[1]), "read.parquet: columns must be a list of text"),
        (lambda: untyped_read.csv("a", delimiter=";;"), "read.csv: delimiter must be one character"),
        (lambda: untyped_read.csv("a", delimiter="\n"), "read.csv: delimiter must be one character"),
        (lambda: untyped_read.csv("a", delimiter='"'), "read.csv: delimiter must be one character"),
        (lambda: untyped_read.csv("a", delimiter=b","), "read.csv: delimiter must be one character"),
        (lambda: untyped_read.csv("a", null_values="NA"), "read.csv: null_values must be a list of text"),
        (lambda: untyped_read.csv("a", null_values=[None]), "read.csv: null_values must be a list of text"),
        (lambda: untyped_read.csv("a", types=["int"]), "read.csv: types must be a dict"),
        (
            lambda: untyped_read.csv("a", types={"x": int}),
            "read.csv: types must be of int, float, text; 'x' has <class",
        ),
        (lambda: untyped_read.csv("a", types={1: "int"}), "read.csv: types names the column 1"),
        (
            lambda: untyped_read.csv("a", columns=["x"], types={"y": "int"}),
            "types names the column 'y', which is not",
        ),
        (
            lambda: untyped_write.parquet("a", writer="pandas"),
            "write.parquet: writer must be one of auto, local, spark",
        ),
        (lambda: untyped_write.stream("a b"), "'a b' cannot be the name of a stream"),
    ],
)
def test_a_bad_argument_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        call()


@pytest.mark.parametrize(
    ("items", "values"),
    [([1, 2], [1, 2]), ((1, 2), [1, 2]), (range(3), [0, 1, 2]), (lambda: iter("ab"), ["a", "b"])],
)
def test_an_iterable_source_gives_the_same_values_each_time(items: Any, values: list[Any]) -> None:
    spec = read.iterable(items)

    assert spec.items is not None
    assert list(spec.items()) == values
    assert list(spec.items()) == values


def test_the_order_of_types_is_not_that_of_the_callers_dict() -> None:
    options = [read.csv("a", types=types).options for types in ({"x": "int", "y": "text"}, {"y": "text", "x": "int"})]

    assert list(options[0]["types"]) == list(options[1]["types"]) == ["x", "y"]


def test_a_list_changed_later_does_not_change_the_source() -> None:
    items = [1, 2]
    spec = read.iterable(items)

    items.append(3)

    assert spec.items is not None
    assert list(spec.items()) == [1, 2]


@pytest.mark.parametrize("items", [iter([1]), (n for n in (1, 2)), map(str, [1])])
def test_what_can_be_read_only_once_is_refused_with_that_reason(items: Any) -> None:
    with pytest.raises(PipelineError, match="can be read only once, and a retry reads again") as caught:
        read.iterable(items)

    assert "makes a fresh iterable" in caught.value.hint


@pytest.mark.parametrize("items", ["text", b"x", {1, 2}, {"a": 1}, 5, None])
def test_what_has_no_order_or_is_no_iterable_is_refused(items: Any) -> None:
    with pytest.raises(PipelineError, match=f"cannot read a {type(items).__name__} again in the same order"):
        read.iterable(items)


def test_a_function_with_parameters_makes_no_items() -> None:
    with pytest.raises(PipelineError, match=r"'read.iterable' needs a function of \(\)"):
        read.iterable(lambda value: [value])  # type: ignore[arg-type, misc]


def test_sources_that_go_on_make_these_specs() -> None:
    assert read.text("/d/a", follow=True).options == {"reader": "auto", "follow": True, "poll_seconds": 0.25}
    assert read.csv("/d/a", follow=True, poll_seconds=2).options["poll_seconds"] == 2.0
    assert read.sql("postgresql://me:pw@h/d", "orders", "id") == SourceSpec(
        "sql",
        options={"url": "postgresql://me:***@h/d", "table": "orders", "columns": ["id"], "poll_seconds": 1.0},
        secrets={"url": "postgresql://me:pw@h/d"},
    )
    assert read.redis_stream("redis://h", "k").options["on_lost"] == "fail"
    assert read.kafka("h:1", "t", config={"sasl.password": "pw"}).options == {
        "servers": "h:1",
        "topic": "t",
        "values": "json",
        "with_keys": False,
        "on_lost": "fail",
        "poll_seconds": 0.1,
    }


@pytest.mark.parametrize(
    ("spec", "followed", "endless"),
    [
        (read.text("a"), False, False),
        (read.iterable([1]), False, False),
        (read.producer(), False, True),
        (read.text("a", follow=True), True, True),
        (read.csv("a", follow=True), True, True),
        (read.json("a", follow=True), True, True),
        (read.sql("env:X", "t", "id"), True, True),
        (read.redis_stream("env:X", "k"), True, True),
        (read.kafka("h:1", "t"), True, True),
        (read.generator(lambda _: []), True, True),
        (read.generator(lambda _: [], poll_seconds=None), True, False),
    ],
)
def test_a_job_runs_until_it_is_drained_when_its_source_has_no_end(
    spec: SourceSpec, followed: bool, endless: bool
) -> None:
    assert is_followed(spec.format, spec.options) is followed
    assert is_endless(spec.format, spec.options) is endless
    assert msgspec.json.decode(msgspec.json.encode(spec.options)) == spec.options


@pytest.mark.parametrize("seconds", [0, -1, "1", True, 100_000, float("nan"), None])
def test_a_pause_that_is_none_is_refused(seconds: Any) -> None:
    with pytest.raises(PipelineError, match=r"read\.sql: poll_seconds must be a number of seconds"):
        read.sql("env:X", "t", "id", poll_seconds=seconds)
