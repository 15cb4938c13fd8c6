"""What `transform` makes of its arguments, and what it refuses. No Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import Pipeline, Stream, read, validation, write
from pipeline.errors import EnvironmentFault, PipelineError
from pipeline.graph import Graph, Transform
from pipeline.kernel.stage import StageKernel
from pipeline.needs import find_needs, refuse_frames
from pipeline.plan import compile_plan, fingerprint
from pipeline.policies import skip
from pipeline.records import Batch
from pipeline.schemas import ArrayOf, Column, ColumnType, DecimalOf, MapOf, Plain, StructOf, parse_schema
from pipeline.settings import Limits


def same(frame: Any) -> Any:
    return frame


def a_source() -> Stream:
    return Pipeline("frames").source(read.iterable(["a"]), name="in", on_error=skip(), pool="heavy")


def made(stream: Stream) -> Graph:
    stream.sink(write.console(), name="out")
    return stream.pipeline.graph()


# the columns


OTHER_WORDS = {Plain.BIGINT: ["long"], Plain.INT: ["integer"], Plain.SMALLINT: ["short"], Plain.TINYINT: ["byte"]}


def written(kind: ColumnType, chance: Any) -> str:
    """The type as somebody might write it."""
    match kind:
        case Plain():
            word = chance.choice([kind.value, *OTHER_WORDS.get(kind, [])])
            return str(chance.choice([word, word.upper(), f" {word} "]))
        case DecimalOf(precision, scale):
            return f"decimal({precision}, {scale})" if scale else f"Decimal({precision})"
        case ArrayOf(item):
            return f"array<{written(item, chance)}>"
        case MapOf(value):
            return f"map<string,{written(value, chance)}>"
        case StructOf(fields):
            parts = (f"{quoted(each.name)}{chance.choice([' ', ': '])}{written(each.type, chance)}" for each in fields)
            return f"struct<{', '.join(parts)}>"


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
DECIMALS = st.integers(1, 38).flatmap(lambda p: st.builds(DecimalOf, st.just(p), st.integers(0, p)))


def columns_of(kinds: st.SearchStrategy[ColumnType], nullable: st.SearchStrategy[bool]) -> Any:
    one = st.builds(Column, NAMES, kinds, nullable)
    return st.lists(one, min_size=1, max_size=4, unique_by=lambda each: each.name).map(tuple)


KINDS = st.recursive(
    st.sampled_from(Plain) | DECIMALS,
    lambda inner: (
        st.builds(ArrayOf, inner) | st.builds(MapOf, inner) | st.builds(StructOf, columns_of(inner, st.just(True)))
    ),
    max_leaves=6,
)


@given(columns_of(KINDS, st.booleans()), st.randoms(use_true_random=False))
def test_a_schema_is_read_as_it_was_meant(columns: tuple[Column, ...], chance: Any) -> None:
    parts = (
        f"{quoted(each.name)} {written(each.type, chance)}{'' if each.is_nullable else ' NOT NULL'}" for each in columns
    )

    assert parse_schema(", ".join(parts), "it") == columns


@given(st.text(st.sampled_from("ab `<>(),:1 stringarray"), max_size=40))
def test_any_text_is_read_or_refused_with_the_owner_in_front(text: str) -> None:
    columns, told = tuple[Column, ...](), ""
    try:
        columns = parse_schema(text, "operator 'op'")
    except PipelineError as error:
        told = str(error)

    assert bool(columns) != told.startswith("operator 'op': the schema ")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("", "its end stands where the name of a column should"),
        ("a", "its end stands where the type of 'a' should"),
        ("a strng", "column 'a': there is no type 'strng'; did you mean 'string'?"),
        ("a string b int", "'b int' is not understood"),
        ("a string,", "its end stands where the name of a column should"),
        ("a int, a string", "two columns are called 'a'"),
        ("a map<int, string>", "column 'a': the keys of a map must be string"),
        ("a array<int", "its end stands where '>' should"),
        ("a decimal(50, 2)", "there is no decimal(50, 2)"),
        ("a decimal(5, 6)", "there is no decimal(5, 6)"),
        ("1a string", "cannot be called '1'"),
        ("dep-delay double", "'-delay double' stands where the type of 'dep' should"),
        ("a int not", "its end stands where 'null' should"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "nested too deeply"),
        ("a\ud800 string", "cannot be read"),
        (["a string"], "the schema must be text"),
        (None, "the schema must be text"),
    ],
)
def test_what_is_no_schema_is_told_with_the_operator(schema: Any, words: str) -> None:
    with pytest.raises(PipelineError) as caught:
        a_source().transform(same, schema=schema, name="op")

    assert str(caught.value).startswith("operator 'op': the schema ")
    assert words in str(caught.value)


# the operator


def test_the_node_holds_all_that_was_said() -> None:
    graph = made(a_source().transform(same, schema="a string, b long NOT NULL", batch=500, name="op"))

    columns = (Column("a", Plain.STRING), Column("b", Plain.BIGINT, is_nullable=False))
    assert graph.node("op") == Transform("op", ("in",), same, columns, 500)
    assert compile_plan(graph, 1, Limits()).stages[0].nodes == ("in", "op", "out")


@pytest.mark.parametrize("batch", [0, -1, 1_000_001, 1.5, True, "8", None])
def test_a_batch_of_another_size_is_refused(batch: Any) -> None:
    with pytest.raises(PipelineError, match="operator 'op': batch must be a whole number from 1 to 1,000,000"):
        a_source().transform(same, schema="a string", batch=batch, name="op")


@pytest.mark.parametrize("fn", [None, 3, lambda: 1, lambda a, b: (a, b)])
def test_what_takes_no_frame_is_refused(fn: Any) -> None:
    with pytest.raises(PipelineError, match="operator 'op' needs a function of \\(frame\\)"):
        a_source().transform(fn, schema="a string", name="op")


def test_a_generator_is_refused() -> None:
    def rows(frame: Any) -> Any:
        yield frame

    with pytest.raises(PipelineError, match="'op' takes one value from its function"):
        a_source().transform(rows, schema="a string", name="op")


def test_a_keyed_stream_is_refused_also_in_a_graph_made_by_hand() -> None:
    words = "operator 'op' works on DataFrames, whose rows do not say which record they come from"
    keyed = a_source().key_by(str, name="by")

    with pytest.raises(PipelineError, match=words):
        keyed.transform(same, schema="a string", name="op")

    graph = made(keyed.map(str, name="op"))
    node = Transform("op", ("by",), same, (Column("a", Plain.STRING),), 10)
    with pytest.raises(PipelineError, match=words):
        validation.check(replace(graph, nodes=tuple(node if each.name == "op" else each for each in graph.nodes)))


def test_a_stream_behind_it_has_no_keys_until_it_is_keyed_again() -> None:
    stream = a_source().transform(same, schema="a string", name="op")

    with pytest.raises(PipelineError, match="stream 'op' is not keyed"):
        stream.last()  # type: ignore[attr-defined]
    graph = made(stream.key_by("a", name="by").last())

    assert [stage.nodes for stage in compile_plan(graph, 2, Limits()).stages] == [("in", "op"), ("by", "last_1", "out")]


def test_another_function_or_schema_does_not_make_another_pipeline() -> None:
    one = made(a_source().transform(same, schema="a string", name="op"))
    other = made(a_source().transform(lambda frame: frame, schema="a long", batch=3, name="op"))

    assert fingerprint(one) == fingerprint(other)


# the plan in bulk


def test_in_bulk_it_begins_a_stage_under_the_policy_of_the_one_before() -> None:
    first = a_source().map(str, name="before").transform(same, schema="a string", name="one")
    graph = made(first.transform(same, schema="a string", name="two").map(str, name="behind").key_by(str, name="by"))

    plan = compile_plan(graph, 3, Limits(), cuts_frames=True)

    assert [(stage.name, stage.keyed, stage.nodes, stage.exchanges, stage.upstream) for stage in plan.stages] == [
        ("in", False, ("in", "before"), {"one": 1}, ()),
        ("one", False, ("one",), {"two": 2}, (0,)),
        ("two", False, ("two", "behind"), {"by": 3}, (1,)),
        ("by", True, ("by", "out"), {}, (2,)),
    ]
    assert [(stage.on_error, stage.pool) for stage in plan.stages[:3]] == [(skip(), "heavy")] * 3
    assert plan.stages[3].pool == "main"


# the kernel


def test_the_kernel_hands_it_to_its_runner() -> None:
    graph = made(a_source().map(lambda n: n + 1, name="before").transform(same, schema="a int", name="op"))
    (stage,) = compile_plan(graph, 1, Limits()).stages
    kernel = StageKernel(graph, stage, {"op": lambda batch: Batch([{"seen": value} for value in batch.values])})

    step = kernel.process(Batch([1, 2]), {})

    assert step.outputs["out"].values == [{"seen": 2}, {"seen": 3}]
    assert kernel.needs_session
    assert not kernel.has_fixed_cost
    with pytest.raises(PipelineError, match="operator 'op' works on DataFrames, and this engine has none"):
        StageKernel(graph, stage)


# what it needs


def test_a_machine_without_spark_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = made(a_source().transform(same, schema="a string", name="op"))
    monkeypatch.setattr("pipeline.needs.find_spec", lambda name: None if name == "pyspark" else object())

    with pytest.raises(EnvironmentFault, match="operator 'op' needs Spark, and pyspark is not installed") as caught:
        find_needs(graph.nodes)

    assert caught.value.hint == "pip install 'celeriac[spark]'"
    find_needs(made(a_source().map(str)).nodes)


def test_an_address_that_is_no_connect_server_is_told_before_anything_starts() -> None:
    graph = made(a_source().transform(same, schema="a string", name="op"))

    with pytest.raises(PipelineError, match="'http://host' is no Connect server"):
        find_needs(graph.nodes, {"CELERIAC_SPARK_REMOTE": "http://host"})


def test_who_cannot_run_it_says_so() -> None:
    graph = made(a_source().transform(same, schema="a string", name="op"))

    with pytest.raises(PipelineError, match="operator 'op' works on DataFrames, and a burst cannot run it"):
        refuse_frames(graph.nodes, "a burst")
    refuse_frames(made(a_source().map(str)).nodes, "a burst")
