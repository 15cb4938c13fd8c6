"""Which output and which stage is meant, from a plan alone; what cannot be read says where it is instead."""

from __future__ import annotations

import pytest

from pipeline import Pipeline, count, read, write
from pipeline.errors import ReadingError
from pipeline.plan import Plan, compile_plan
from pipeline.reading.choosing import choose_output, choose_stage
from pipeline.settings import Limits


def a_plan(**sinks: object) -> Plan:
    flow = Pipeline("flow")
    numbers = flow.source(read.iterable([0]), name="in")
    for name, spec in sinks.items():
        numbers.sink(spec, name=name)  # type: ignore[arg-type]
    return compile_plan(flow.graph(), 1, Limits())


def test_the_only_output_needs_no_name_and_a_sink_is_known_by_two() -> None:
    plan = a_plan(answers=write.stream("out"), files=write.text("/tmp/x"))

    assert [choose_output(plan, "j", name) for name in (None, "out", "answers")] == ["out", "out", "out"]


def test_a_console_sink_is_read_by_its_own_name() -> None:
    assert choose_output(a_plan(screen=write.console()), "j", None) == "screen"


def test_a_database_is_named_without_its_password() -> None:
    plan = a_plan(rows=write.sql("postgresql://me:secret@host/shop", "sales.orders"))

    for name in (None, "rows"):
        with pytest.raises(ReadingError, match=r"'rows' writes sql to the table sales.orders") as wrong:
            choose_output(plan, "j", name)
        assert "secret" not in f"{wrong.value} {wrong.value.hint}"


def test_an_operator_in_two_stages_must_be_told_apart() -> None:
    flow = Pipeline("flow")
    one = flow.source(read.iterable([0]), name="one")
    two = flow.source(read.iterable([0]), name="two")
    first = one.key_by(str, name="by_one")
    second = two.key_by(str, name="by_two")
    first.union(second, name="both").map(str, name="shared").sink(write.stream("out"), name="out")
    first.aggregate(count(), name="counts").sink(write.stream("counts"), name="counted")
    plan = compile_plan(flow.graph(), 1, Limits())

    with pytest.raises(ReadingError, match="'shared' of job 'j' is in several stages") as wrong:
        choose_stage(plan, "j", "shared")

    assert wrong.value.hint == "name one: by_one, by_two"
    stage, states = choose_stage(plan, "j", "counts")
    assert (stage.name, [state.operator for state in states]) == ("by_one", ["counts"])
