"""What sinks are told: bad arguments are refused with a hint, secrets stay out of plans and reprs, extras are named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline.sinks
from pipeline import Pipeline, read, write
from pipeline.errors import EnvironmentFault, PipelineError
from pipeline.graph import SinkSpec
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.sinks.links import SinkLinks
from pipeline.sinks.secrets import normal_database, value_of, without_secrets

SECRET = "s3cret-word"


def a_graph(spec: SinkSpec) -> Any:
    flow = Pipeline("flow")
    flow.source(read.iterable([1]), name="in").sink(spec, name="place")
    return flow.graph()


@pytest.mark.parametrize(
    "spec",
    [
        write.sql(f"postgresql://user:{SECRET}@host/db", "t"),
        write.sql(f"postgresql://host/db?user=u&password={SECRET}", "t"),
        write.http(f"https://user:{SECRET}@host/x"),
        write.http(f"https://host/x?api_key={SECRET}&a=1"),
        write.http("https://host/x", headers={"Authorization": f"Bearer {SECRET}"}),
        write.kafka("host:9092", "t", options={"sasl.password": SECRET}),
    ],
)
def test_a_secret_is_in_no_repr_and_in_no_plan(spec: SinkSpec) -> None:
    graph = a_graph(spec)

    plan = compile_plan(graph, 1, Limits())

    assert SECRET not in repr(spec) + repr(graph)
    assert SECRET.encode() not in plan.encode()
    assert any(SECRET in value for value in spec.secrets.values())


def test_the_fingerprint_does_not_hang_on_a_password() -> None:
    one, other = (a_graph(write.sql(f"postgresql://u:{word}@h/x", "t")) for word in ("a", "b"))

    assert compile_plan(one, 1, Limits()).fingerprint == compile_plan(other, 1, Limits()).fingerprint


@given(user=st.text("abc", max_size=3), password=st.text("xyz@:/?&", min_size=4, max_size=12))
def test_a_password_is_hidden_whatever_it_holds(user: str, password: str) -> None:
    shown = without_secrets(f"postgresql://{user}:{password.replace('?', '')}@host/name")

    assert shown == f"postgresql://{user}:***@host/name"


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: write.sql("mysql://h/x", "t"), "mysql is no database that can be written"),
        (lambda: write.sql(f"{SECRET}", "t"), "text without a scheme is no database"),
        (lambda: write.sql("sqlite://", "t"), "an SQLite database in memory is lost"),
        (lambda: write.sql("env:NO GOOD", "t"), "names no variable"),
        (lambda: write.sql(3, "t"), "the address of the database must be text"),  # type: ignore[arg-type]
        (lambda: write.sql("sqlite:///x", ""), "cannot be the name of a table"),
        (lambda: write.sql("sqlite:///x", "a.b.c"), "cannot be the name of a table"),
        (lambda: write.sql("sqlite:///x", "t", mode="merge"), "mode must be one of insert, upsert"),
        (lambda: write.sql("sqlite:///x", "t", mode="upsert"), "an upsert needs a key"),
        (lambda: write.sql("sqlite:///x", "t", key=["a", "a"]), "key must be the name of a column"),
        (lambda: write.http("ftp://h"), "must begin with http"),
        (lambda: write.http("http://h", batch=0), "batch must be a number from 1"),
        (lambda: write.http("http://h", timeout_seconds=100), "timeout_seconds must be above 0 and at most 50"),
        (lambda: write.http("http://h", headers={"a": 1}), "headers must be a dict of texts"),  # type: ignore[dict-item]
        (lambda: write.call(lambda: None), "needs a function of \\(records\\)"),  # type: ignore[arg-type, misc]
        (lambda: write.call(print, batch=True), "batch must be a number"),
        (lambda: write.kafka("", "t"), "the servers must be text"),
        (lambda: write.kafka("h:1", "no topic"), "cannot be the name of a topic"),
        (lambda: write.jsonl("out", rotate_bytes=0), "rotate_bytes must be a number of bytes"),
        (lambda: write.csv("out", rotate_seconds=0.01), "rotate_seconds must be a number of at least 0.1"),
        (lambda: write.text("out", rotate_seconds=float("nan")), "rotate_seconds must be a number of at least 0.1"),
    ],
)
def test_an_argument_that_cannot_be_right_is_refused_when_it_is_given(make: Callable[[], object], error: str) -> None:
    with pytest.raises(PipelineError, match=error) as caught:
        make()

    assert SECRET not in str(caught.value) + caught.value.hint


def test_a_relative_sqlite_file_counts_from_the_folder_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert write.sql("sqlite:///a.db", "t").options["url"] == f"sqlite:///{tmp_path}/a.db"


def test_a_variable_is_read_when_it_is_needed() -> None:
    assert value_of("env:A_URL", "the address", {"A_URL": "x"}) == "x"
    assert value_of("plain", "the address", {}) == "plain"
    with pytest.raises(EnvironmentFault, match="the address is in the variable A_URL, which is not set"):
        value_of("env:A_URL", "the address", {"A_URL": ""})
    assert normal_database("postgres://h/x", "sink") == "postgresql+psycopg://h/x"


@pytest.mark.parametrize(
    ("spec", "module", "ours", "command"),
    [
        (write.sql("sqlite:////tmp/x.db", "t"), "sqlalchemy", "sql_", "pip install 'celeriac[sql]'"),
        (write.sql("postgresql://h/x", "t"), "psycopg", "none", "pip install 'celeriac[postgres]'"),
        (write.http("http://h"), "httpx", "http_sink", "pip install 'celeriac[http]'"),
        (write.kafka("h:1", "t"), "confluent_kafka", "kafka_sink", "pip install 'celeriac[kafka]'"),
    ],
)
def test_a_missing_extra_is_told_with_the_command_that_installs_it(
    spec: SinkSpec, module: str, ours: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.startswith(f"pipeline.sinks.{ours}"):
            monkeypatch.delitem(sys.modules, name)
            # The package knows its modules by attributes, too.
            monkeypatch.delattr(pipeline.sinks, name.rpartition(".")[2], raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    graph = a_graph(spec)

    with pytest.raises(EnvironmentFault, match=f"needs (import of )?{module}|{module}") as caught:
        SinkLinks(graph.nodes).effects(compile_plan(graph, 1, Limits()).sinks)

    assert caught.value.hint == command
