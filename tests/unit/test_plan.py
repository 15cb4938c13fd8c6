"""compile_plan cuts a graph into the stages that a reader of the pipeline would expect."""

from __future__ import annotations

import pytest

from pipeline import Pipeline, Stream, count, read, write
from pipeline.errors import DecodingError
from pipeline.graph import Graph
from pipeline.plan import Plan, SinkPlan, StagePlan, compile_plan, fingerprint
from pipeline.settings import Limits

WORDCOUNT = """
from pipeline import Pipeline, count, read, write
flow = Pipeline("wordcount")
lines = flow.source(read.csv("/d/in.csv", columns=["b", "a"], types={"b": "int", "a": "text"}), name="lines")
words = lines.flat_map(str.split, name="split")
words.key_by(str.lower, name="by_word").aggregate(count(), name="n").sink(write.jsonl("/d/out"), name="out")
"""


def a_wordcount(name: str = "n") -> Graph:
    flow = Pipeline("wordcount")
    lines = flow.source(read.iterable(["a b"]), name="lines")
    counts = lines.flat_map(str.split, name="split").key_by("word", name="by_word").aggregate(count(), name=name)
    counts.sink(write.jsonl("/d/out"), name="out")
    return flow.graph()


def two_sources() -> tuple[Pipeline, Stream]:
    flow = Pipeline("flow")
    left = flow.source(read.iterable([1]), name="left")
    right = flow.source(read.iterable([2]), name="right")
    return flow, left.union(right.map(str, name="as_text"), name="both")


def a_plan(flow: Pipeline, partitions: int = 2) -> Plan:
    return compile_plan(flow.graph(), partitions, Limits())


def test_a_wordcount_has_an_entry_stage_and_a_keyed_stage() -> None:
    plan = compile_plan(a_wordcount(), 4, Limits())

    assert plan.stages == (
        StagePlan(0, "lines", False, 4, ("lines", "split"), {"by_word": 1}, (), ()),
        StagePlan(1, "by_word", True, 4, ("by_word", "n", "out"), {}, ("out",), (0,)),
    )
    assert plan.sinks == (SinkPlan("out", "jsonl", "/d/out", {}, "word"),)
    assert (plan.pipeline, plan.limits) == ("wordcount", Limits())
    assert plan.partitions() == [(stage, number) for stage in (0, 1) for number in range(4)]
    assert plan.entry_stage("lines") is plan.stage(0)


def test_a_union_of_two_sources_before_one_key_by_gives_three_stages() -> None:
    flow, both = two_sources()
    both.key_by("k", name="by").last(name="end").sink(write.console(), name="out")

    assert a_plan(flow).stages == (
        StagePlan(0, "left", False, 2, ("left", "both"), {"by": 2}, (), ()),
        StagePlan(1, "right", False, 2, ("right", "as_text", "both"), {"by": 2}, (), ()),
        StagePlan(2, "by", True, 2, ("by", "end", "out"), {}, ("out",), (0, 1)),
    )


def test_a_sink_behind_a_union_of_two_sources_stands_in_both_entry_stages() -> None:
    flow, both = two_sources()
    both.sink(write.console(), name="out")

    plan = a_plan(flow)

    assert [(stage.name, stage.nodes, stage.sinks) for stage in plan.stages] == [
        ("left", ("left", "both", "out"), ("out",)),
        ("right", ("right", "as_text", "both", "out"), ("out",)),
    ]
    assert [sink.name for sink in plan.sinks] == ["out"]


def test_the_branches_of_a_stream_stay_in_its_stage() -> None:
    flow = Pipeline("flow")
    small, rest = flow.source(read.iterable([1]), name="in").branch(bool, name="b")
    small.key_by("k", name="by").last(name="end").sink(write.console(), name="keyed_out")
    rest.sink(write.console(), name="rest_out")

    assert a_plan(flow).stages == (
        StagePlan(0, "in", False, 2, ("in", "b_1", "b_rest", "rest_out"), {"by": 1}, ("rest_out",), ()),
        StagePlan(1, "by", True, 2, ("by", "end", "keyed_out"), {}, ("keyed_out",), (0,)),
    )


def test_a_key_by_after_a_key_by_is_a_stage_after_it() -> None:
    flow = Pipeline("flow")
    first = flow.source(read.iterable([1]), name="in").key_by("a", name="by_a")
    first.key_by("b", name="by_b").sink(write.console(), name="out")

    assert [(stage.nodes, stage.exchanges, stage.upstream) for stage in a_plan(flow).stages] == [
        (("in",), {"by_a": 1}, ()),
        (("by_a",), {"by_b": 2}, (0,)),
        (("by_b", "out"), {}, (1,)),
    ]


def test_a_stage_that_feeds_two_key_bys_has_two_exchanges() -> None:
    flow = Pipeline("flow")
    values = flow.source(read.iterable([1]), name="in")
    for field in ("a", "b"):
        values.key_by(field, name=f"by_{field}").last(name=f"last_{field}").sink(write.console())

    plan = a_plan(flow)

    assert plan.stage(0).exchanges == {"by_a": 1, "by_b": 2}
    assert [stage.upstream for stage in plan.stages] == [(), (0,), (0,)]


def test_a_union_of_a_source_and_a_keyed_stream_stands_in_both_stages() -> None:
    flow = Pipeline("flow")
    values = flow.source(read.iterable([1]), name="in")
    latest = values.key_by("a", name="by_a").last(name="latest")
    values.union(latest, name="all").key_by("b", name="by_b").last(name="end").sink(write.console(), name="out")

    assert [(stage.nodes, stage.exchanges, stage.upstream) for stage in a_plan(flow).stages] == [
        (("in", "all"), {"by_a": 1, "by_b": 2}, ()),
        (("by_a", "latest", "all"), {"by_b": 2}, (0,)),
        (("by_b", "end", "out"), {}, (0, 1)),
    ]


def test_upstream_stages_have_lower_numbers_whatever_the_order_of_the_calls() -> None:
    flow = Pipeline("flow")
    early = flow.source(read.iterable([1]), name="early").key_by("a", name="by_a").last(name="latest")
    late = flow.source(read.iterable([2]), name="late")
    early.union(late, name="all").key_by("b", name="by_b").sink(write.console(), name="out")

    assert all(number < stage.index for stage in a_plan(flow).stages for number in stage.upstream)


def test_a_plan_survives_its_encoding() -> None:
    plan = compile_plan(a_wordcount(), 3, Limits(step_records=5))

    assert Plan.decode(plan.encode()) == plan
    with pytest.raises(DecodingError, match="the stored plan cannot be read"):
        Plan.decode(b"{}")


def test_an_unknown_source_has_no_entry_stage() -> None:
    plan = compile_plan(a_wordcount(), 1, Limits())

    for name in ("nothing", "by_word"):
        with pytest.raises(KeyError):
            plan.entry_stage(name)


def test_the_fingerprint_is_that_of_the_structure() -> None:
    same = fingerprint(a_wordcount())

    assert same == fingerprint(a_wordcount())
    assert same != fingerprint(a_wordcount(name="other"))
    assert compile_plan(a_wordcount(), 1, Limits()).fingerprint == same


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("/d/in.csv", "/d/other.csv"),
        ('"b", "a"', '"a", "b"'),
        ("write.jsonl", "write.csv"),
        ('Pipeline("w', 'Pipeline("v'),
    ],
)
def test_the_fingerprint_changes_with_sources_sinks_and_the_pipelines_name(text: str, changed: str) -> None:
    assert fingerprint_of(WORDCOUNT) != fingerprint_of(WORDCOUNT.replace(text, changed, 1))


def fingerprint_of(text: str) -> str:
    names: dict[str, Pipeline] = {}
    exec(text, names)
    return fingerprint(names["flow"].graph())
