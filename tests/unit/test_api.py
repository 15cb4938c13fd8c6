"""The user's API makes the right graph, or says what is wrong with the pipeline, by the operator's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import KeyedOperator, KeyedStream, Pipeline, Stream, count, mean, read, write
from pipeline.errors import PipelineError
from pipeline.graph import (
    Filter,
    FlatMap,
    Graph,
    KeyBy,
    Keyed,
    Map,
    MapWithKey,
    Node,
    Sink,
    SinkSpec,
    Source,
    SourceSpec,
    Union,
)
from pipeline.kernel.contract import Emitted
from pipeline.kernel.operators import Aggregate, Last, Reduce, StatefulMap
from pipeline.kernel.testing import Harness
from pipeline.records import Batch
from pipeline.validation import check


def a_stream(name: str = "words") -> Stream:
    return Pipeline("flow").source(read.iterable(["b", "a", "b"]), name=name)


def a_keyed_stream() -> KeyedStream:
    return a_stream().key_by(lambda value: value)


def nodes_of(stream: Stream) -> tuple[Node, ...]:
    """The nodes made so far, given a sink for each open end of the pipeline."""
    stream.sink(write.console(), name="end")
    return stream.pipeline.graph().nodes


def outputs_of(stream: Stream, values: list[Any]) -> tuple[list[Any] | None, list[Any]]:
    """Keys and values that leave the stream's pipeline when these values enter it and the input ends."""
    stream.sink(write.console(), name="end")
    harness = Harness(stream.pipeline.graph())
    harness.push(Batch(values))
    harness.fire()
    batches = harness.outputs["end"]
    keys = None if batches[0].keys is None else [key for batch in batches for key in batch.keys or []]
    return keys, [value for batch in batches for value in batch.values]


def a_source(name: str = "in") -> Source:
    return Source(name, SourceSpec("iterable", items=lambda: ()))


def a_sink(source: str, name: str = "out") -> Sink:
    return Sink(name, (source,), SinkSpec("console"), None)


class Doubling(KeyedOperator):
    def process(self, *columns: Any) -> Emitted:
        _keys, values, _state, _timers = columns
        return Emitted([value * 2 for value in values])


# What the calls make


def test_a_wordcount_becomes_one_node_for_each_call() -> None:
    flow = Pipeline("wordcount")

    lines = flow.source(read.iterable(["a b", "a"]))
    lines.flat_map(str.split).key_by(str.lower).aggregate(count()).sink(write.console())

    graph = flow.graph()
    assert graph.name == "wordcount"
    assert [(type(node), node.name, node.inputs) for node in graph.nodes] == [
        (Source, "source_1", ()),
        (FlatMap, "flat_map_1", ("source_1",)),
        (KeyBy, "key_by_1", ("flat_map_1",)),
        (Keyed, "aggregate_1", ("key_by_1",)),
        (Sink, "sink_1", ("aggregate_1",)),
    ]


def test_derived_names_count_each_kind_and_given_names_are_taken() -> None:
    stream = a_stream().map(str).map(str, name="mine").map(str).filter(len)

    assert [node.name for node in nodes_of(stream)] == ["words", "map_1", "mine", "map_3", "filter_1", "end"]


def test_a_derived_name_steps_aside_for_a_given_one() -> None:
    assert a_stream().map(str, name="map_2").map(str).name == "map_3"


def test_a_refused_call_takes_no_name() -> None:
    stream = a_stream()

    with pytest.raises(PipelineError):
        stream.map(lambda: None)  # type: ignore[arg-type, misc]

    assert stream.map(str).name == "map_1"


def test_streams_are_handles_that_stay_usable_after_more_operators() -> None:
    words = a_stream()
    words.map(str.upper).sink(write.console())
    words.map(str.lower).sink(write.console())

    inputs = {node.name: node.inputs for node in words.pipeline.graph().nodes}
    assert inputs["map_1"] == inputs["map_2"] == ("words",)
    with pytest.raises(AttributeError):
        words.name = "other"  # type: ignore[misc]


def test_every_keyed_method_is_a_keyed_operator_over_process() -> None:
    keyed = a_keyed_stream()
    made = [
        keyed.reduce(max),
        keyed.aggregate(mean()),
        keyed.stateful_map(lambda key, value, state: (value, [key, state])),
        keyed.last(),
        keyed.process(Doubling()),
    ]

    kinds = []
    for stream in made:
        node = keyed.pipeline._nodes[stream.name]
        assert isinstance(node, Keyed)
        kinds.append((stream.name, type(node.operator)))
    assert kinds == [
        ("reduce_1", Reduce),
        ("aggregate_1", Aggregate),
        ("stateful_map_1", StatefulMap),
        ("last_1", Last),
        ("process_1", Doubling),
    ]


def test_stateless_operators_keep_a_stream_keyed_and_union_does_not() -> None:
    keyed = a_stream().key_by("word")

    same = [keyed.map(str), keyed.filter(len), keyed.flat_map(list), keyed.map_with_key(max), keyed.last()]
    joined = same[0].union(same[1])

    assert all(type(stream) is KeyedStream and stream.key_field == "word" for stream in same)
    assert type(joined) is Stream
    assert joined.key_field is None


def test_key_by_a_field_names_the_keys_column_and_reads_it() -> None:
    stream = a_stream().key_by("carrier", name="by")
    stream.sink(write.console())

    node = stream.pipeline.graph().node("by")
    sink = stream.pipeline.graph().node("sink_1")

    assert isinstance(node, KeyBy)
    assert node.field == "carrier"
    assert node.fn({"carrier": "UA"}) == "UA"
    assert isinstance(sink, Sink)
    assert sink.key_field == "carrier"


def test_key_by_a_function_has_the_column_key() -> None:
    assert a_keyed_stream().key_field == "key"


def test_a_keyed_stream_can_be_keyed_anew() -> None:
    assert a_keyed_stream().key_by("other").key_field == "other"


def test_aggregate_takes_several_named_aggregations() -> None:
    keys, values = outputs_of(a_keyed_stream().aggregate(n=count(), top=mean(len)), ["b", "b"])

    assert keys == ["b", "b"]
    assert values == [{"n": 1, "top": 1.0}, {"n": 2, "top": 1.0}]


def test_last_gives_the_last_value_of_each_key_at_the_end() -> None:
    keys, values = outputs_of(a_stream().key_by(lambda value: value[0]).last(), ["a1", "b1", "a2"])

    assert dict(zip(keys or [], values, strict=True)) == {"a": "a2", "b": "b1"}


def test_map_with_key_sees_the_key() -> None:
    stream = a_stream().key_by(lambda value: value[0]).map_with_key(lambda key, value: f"{key}={value}")

    assert isinstance(stream.pipeline._nodes["map_with_key_1"], MapWithKey)
    assert outputs_of(stream, ["a1", "b1"]) == (["a", "b"], ["a=a1", "b=b1"])


def test_branch_sends_each_record_to_the_first_match_or_the_rest() -> None:
    numbers = a_stream("numbers")
    even, large, rest = numbers.branch(lambda n: n % 2 == 0, lambda n: n > 10, name="split")
    for stream, sink in ((even, "even"), (large, "large"), (rest, "rest")):
        stream.sink(write.console(), name=sink)

    harness = Harness(numbers.pipeline.graph())
    harness.push(Batch([1, 2, 11, 12]))

    assert {name: [v for b in batches for v in b.values] for name, batches in harness.outputs.items()} == {
        "even": [2, 12],
        "large": [11],
        "rest": [1],
    }


def test_branch_is_made_of_filters_with_stable_names_and_keeps_keys() -> None:
    keyed = a_keyed_stream()

    first = keyed.branch(len)
    second = keyed.branch(len)
    named = keyed.branch(len, name="long")

    assert [stream.name for stream in (*first, *second, *named)] == [
        *("branch_1_1", "branch_1_rest", "branch_2_1", "branch_2_rest"),
        *("long_1", "long_rest"),
    ]
    assert all(type(stream) is KeyedStream for stream in (*first, *second, *named))
    assert isinstance(keyed.pipeline._nodes["long_rest"], Filter)


def test_a_branch_named_like_a_kind_does_not_shift_the_derived_names() -> None:
    stream = a_stream()
    stream.branch(len, name="map")

    assert stream.map(str).name == "map_2"


def test_union_joins_streams_of_one_pipeline() -> None:
    flow = Pipeline("flow")
    left, right = flow.source(read.iterable([1])), flow.source(read.iterable([2]))

    left.union(right).sink(write.console())

    assert flow.graph().node("union_1") == Union("union_1", ("source_1", "source_2"))


def test_sink_gives_nothing() -> None:
    assert a_stream().sink(write.console()) is None  # type: ignore[func-returns-value]


def test_builtins_without_a_signature_are_taken() -> None:
    assert a_stream().map(int).name == "map_1"


def test_a_stream_joined_with_its_own_aggregate_runs_in_both_stages() -> None:
    words = a_stream()
    joined = words.union(words.key_by(lambda value: value).aggregate(count()))

    keys, values = outputs_of(joined, ["b", "b"])

    assert keys is None
    assert sorted(values, key=str) == [1, 2, "b", "b"]


# What the calls refuse


@pytest.mark.parametrize("name", ["", "1a", "_a", "a b", "a/b", "a:b", "ä", "a" * 65, "a\n", None, 3])
def test_a_bad_pipeline_name_is_refused(name: Any) -> None:
    with pytest.raises(PipelineError, match="cannot be the name of a pipeline"):
        Pipeline(name)


@pytest.mark.parametrize("name", ["", "1a", "a b", "a{b}", "a" * 65, 3])
def test_a_bad_operator_name_is_refused(name: Any) -> None:
    with pytest.raises(PipelineError, match="cannot be the name of the operator map"):
        a_stream().map(str, name=name)


def test_a_name_of_64_characters_is_taken() -> None:
    assert a_stream().map(str, name="a" * 64).name == "a" * 64


def test_a_duplicate_name_is_refused_at_the_call() -> None:
    stream = a_stream().map(str, name="same")

    with pytest.raises(PipelineError, match="two operators are named 'same'"):
        stream.filter(len, name="same")


def test_a_branch_that_repeats_a_name_is_refused_and_adds_nothing() -> None:
    stream = a_stream().map(str, name="b_rest")
    before = dict(stream.pipeline._nodes)

    with pytest.raises(PipelineError, match="two operators are named 'b_rest'"):
        stream.branch(len, name="b")

    assert stream.pipeline._nodes == before


KEYED_CALLS: dict[str, Callable[[Any], Any]] = {
    "map_with_key": lambda stream: stream.map_with_key(max),
    "reduce": lambda stream: stream.reduce(max),
    "aggregate": lambda stream: stream.aggregate(count(), name="n"),
    "stateful_map": lambda stream: stream.stateful_map(lambda key, value, state: (value, [key, state])),
    "process": lambda stream: stream.process(Doubling()),
    "last": lambda stream: stream.last(),
}


@pytest.mark.parametrize("method", KEYED_CALLS)
def test_a_keyed_operator_on_an_unkeyed_stream_is_refused(method: str) -> None:
    with pytest.raises(PipelineError, match="stream 'words' is not keyed; call key_by first"):
        KEYED_CALLS[method](a_stream())


def test_every_method_of_a_keyed_stream_is_known_to_an_unkeyed_one() -> None:
    own = {name for name in vars(KeyedStream) if not name.startswith("_")} - {"key_field"}

    assert own == set(KEYED_CALLS)
    assert own <= set(vars(Stream))


def test_streams_of_two_pipelines_are_not_joined() -> None:
    other = Pipeline("elsewhere").source(read.iterable([1]), name="theirs")

    with pytest.raises(PipelineError, match=r"'union_1' .*'words'.*'flow'.*'theirs'.*'elsewhere'"):
        a_stream().union(other)


def test_a_union_needs_two_different_streams() -> None:
    stream = a_stream()

    with pytest.raises(PipelineError, match="the union 'union_1' needs two or more streams"):
        stream.union()
    with pytest.raises(PipelineError, match="the union 'both' needs two or more streams, each of them once"):
        stream.union(stream, name="both")
    with pytest.raises(PipelineError, match=r"the union 'union_1' joins streams, not \[1\]"):
        stream.union([1])  # type: ignore[arg-type]


def a_generator() -> Iterator[int]:
    yield 1


async def a_coroutine(value: Any) -> Any:
    return value


def yielding(value: Any) -> Iterator[Any]:
    yield value


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.map("text", name="op"), r"operator 'op' needs a function of \(value\), not 'text'"),
        (lambda s: s.map(None), r"operator 'map_1' needs a function of \(value\), not None"),
        (lambda s: s.map(lambda: 1), r"'map_1' needs a function of \(value\); <lambda>\(\) does not fit"),
        (
            lambda s: s.filter(lambda a, b: a + b),
            r"'filter_1' .*<lambda>\(a, b\) does not fit: missing .*'b'",
        ),
        (lambda s: s.filter(lambda a, *, b: a + b), "'filter_1' .*does not fit: missing .*'b'"),
        (lambda s: s.flat_map(a_generator()), "'flat_map_1' .*not a generator: that runs only once"),
        (lambda s: s.map(iter([1])), "'map_1' .*not a list_iterator: that runs only once"),
        (lambda s: s.map(yielding), "'map_1' takes one value from its function, but yielding uses yield"),
        (lambda s: s.filter(a_coroutine), "'filter_1' .*a_coroutine is async"),
        (lambda s: s.key_by(lambda: 1), "'key_by_1' .*does not fit"),
        (lambda s: s.key_by(""), "operator 'key_by_1': '' cannot be the name of a field"),
        (lambda s: s.key_by(3), "operator 'key_by_1' needs a function"),
        (lambda s: s.branch(), "the branch 'branch_1' needs at least one predicate"),
        (lambda s: s.branch(bool, 3), "operator 'branch_1_2' needs a function"),
    ],
)
def test_a_function_that_does_not_fit_is_refused(call: Callable[[Stream], Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        call(a_stream())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.reduce(lambda a: a), r"'reduce_1' needs a function of \(running, value\)"),
        (lambda s: s.stateful_map(lambda k, v: k + v), r"'stateful_map_1' .*\(key, value, state\)"),
        (lambda s: s.map_with_key(lambda v: v), r"'map_with_key_1' .*\(key, value\)"),
        (lambda s: s.process(Doubling), "operator 'process_1' needs an instance of a KeyedOperator"),
        (lambda s: s.aggregate(), "operator 'aggregate_1' needs either one aggregation or named ones"),
        (lambda s: s.aggregate(count(), n=count()), "'aggregate_1' needs either one aggregation or named"),
        (lambda s: s.aggregate(count), "operator 'aggregate_1' needs an aggregation, not <function count"),
        (lambda s: s.aggregate(n=len, name="op"), "operator 'op' needs an aggregation, not <built-in"),
    ],
)
def test_a_keyed_argument_that_does_not_fit_is_refused(call: Callable[[KeyedStream], Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        call(a_keyed_stream())


def test_a_flat_map_takes_a_generator_function() -> None:
    assert outputs_of(a_stream().flat_map(yielding), [1, 2]) == (None, [1, 2])


def test_a_source_or_sink_that_is_no_spec_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"the source 'source_1' needs what to read, not 'a.txt'"):
        Pipeline("flow").source("a.txt")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="the sink 'sink_1' needs where to write, not SourceSpec"):
        a_stream().sink(read.text("a.txt"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (lambda: 1, "socket"),
        ({1, 2}, "socket"),
        (b"raw", "socket"),
        ((1, 2), "socket"),
        (float("nan"), "socket"),
        (2**70, "socket"),
        ("\ud800", "socket"),
        ({"deep": [1, {"er": object()}]}, "socket.deep[1].er"),
        ({1: 2}, "socket"),
    ],
)
def test_an_option_that_is_no_json_value_is_named(value: Any, place: str) -> None:
    spec = SinkSpec("console", options={"fine": [1, "a", None, 1.5, True], "socket": value})

    with pytest.raises(PipelineError) as caught:
        a_stream().sink(spec, name="end")

    assert f"the sink 'end': the option '{place}' cannot be stored" in str(caught.value)


# What the whole graph must satisfy


def test_a_pipeline_without_a_source_or_a_sink_is_refused() -> None:
    with pytest.raises(PipelineError, match="the pipeline 'flow' has no source"):
        Pipeline("flow").graph()
    with pytest.raises(PipelineError, match="the pipeline 'flow' has no sink: nothing would leave 'map_1'"):
        a_stream().map(str).pipeline.graph()


def test_a_stream_that_ends_nowhere_is_named() -> None:
    stream = a_stream()
    stream.map(str, name="forgotten")
    stream.sink(write.console())

    with pytest.raises(PipelineError, match=r"the stream 'forgotten' .* ends nowhere"):
        stream.pipeline.graph()


def test_a_pipeline_can_grow_after_its_graph_was_taken() -> None:
    stream = a_stream()
    stream.sink(write.console())
    first = stream.pipeline.graph()

    stream.map(str).sink(write.console())

    assert len(first.nodes) == 2
    assert len(stream.pipeline.graph().nodes) == 4


def test_a_cycle_in_a_hand_made_graph_is_found_with_its_way() -> None:
    graph = Graph(
        "flow",
        (
            a_source(),
            Union("a", ("in", "c")),
            Map("b", ("a",), str),
            Map("c", ("b",), str),
            a_sink("c"),
        ),
    )

    with pytest.raises(PipelineError) as caught:
        check(graph)

    ways = ("a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c")
    assert str(caught.value) in {f"the operators form a cycle: {way}" for way in ways}


def test_an_operator_that_reads_itself_is_a_cycle() -> None:
    with pytest.raises(PipelineError, match="cycle: a -> a"):
        check(Graph("flow", (a_source(), Union("a", ("in", "a")), a_sink("a"))))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((a_source(), a_sink("im")), "operator 'out' reads from 'im', which is not in the pipeline"),
        ((a_source(), a_source(), a_sink("in")), "two operators are named 'in'"),
        ((Map("m", ("in",), str), a_source(), a_sink("m")), "'m' stands before its input"),
        ((a_source(), Map("m", ("in", "in"), str), a_sink("m")), "operator 'm' has 2 inputs"),
        ((a_source(), Map("m", (), str), a_sink("m")), "operator 'm' has 0 inputs"),
        ((a_source(), Union("u", ("in",)), a_sink("u")), "the union 'u' needs two or more"),
        ((a_source(), a_sink("in"), a_sink("out", "next")), "'next' reads from the sink 'out'"),
        ((a_source(), Keyed("k", ("in",), Last()), a_sink("k")), "stream 'in' is not keyed"),
        ((a_source(), MapWithKey("k", ("in",), max), a_sink("k")), "stream 'in' is not keyed"),
        ((a_source("a b"), a_sink("a b")), "'a b' cannot be the name of an operator"),
    ],
)
def test_a_hand_made_graph_is_checked(nodes: tuple[Node, ...], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        check(Graph("flow", nodes))


def test_a_keyed_operator_behind_a_union_of_keyed_streams_is_refused() -> None:
    keyed = a_keyed_stream()

    with pytest.raises(PipelineError, match="stream 'union_1' is not keyed"):
        keyed.map(str).union(keyed.filter(len)).last()


# Paths that would hurt each other


def two_sinks(first: SinkSpec, second: SinkSpec) -> Graph:
    stream = a_stream()
    stream.sink(first, name="first")
    stream.sink(second, name="second")
    return stream.pipeline.graph()


def from_to(source: str, sink: str) -> Graph:
    flow = Pipeline("flow")
    flow.source(read.text(source), name="input").sink(write.jsonl(sink), name="result")
    return flow.graph()


@pytest.mark.parametrize("other", ["out", "./out/", "out/inner", ".", "other/../out"])
def test_two_sinks_of_one_place_are_refused(other: str) -> None:
    with pytest.raises(PipelineError, match="the sinks 'first' and 'second' write to the same place"):
        two_sinks(write.jsonl("out"), write.csv(other))


def test_two_sinks_of_one_place_are_found_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    with pytest.raises(PipelineError, match="write to the same place"):
        two_sinks(write.jsonl(tmp_path / "real" / "out"), write.jsonl(tmp_path / "link" / "out"))


def test_two_sinks_of_one_stream_are_refused() -> None:
    with pytest.raises(PipelineError, match="the sinks 'first' and 'second' write the same stream"):
        two_sinks(write.stream("s"), write.stream("s"))


def test_sinks_of_different_places_are_taken() -> None:
    assert len(two_sinks(write.console(), write.console()).nodes) == 3
    assert len(two_sinks(write.jsonl("out"), write.jsonl("out2")).nodes) == 3
    assert len(two_sinks(write.stream("a"), write.stream("b")).nodes) == 3


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        ("data", "data"),
        ("data/in.txt", "data"),
        ("data/*.txt", "data"),
        ("data/*.txt", "data/out.txt"),
        ("data/*/in.txt", "data"),
        ("data/deep/*.txt", "data"),
        ("da[t]a/in.txt", "."),
        ("data/in.txt", "data/../data"),
    ],
)
def test_a_sink_that_would_replace_a_sources_input_is_refused(source: str, sink: str) -> None:
    with pytest.raises(PipelineError, match=r"the sink 'result' writes to .* holds the input of the source 'input'"):
        from_to(source, sink)


@pytest.mark.parametrize(
    ("source", "sink"), [("data/in.txt", "data/out"), ("data/*.txt", "data/out"), ("data", "data-out")]
)
def test_a_sink_beside_the_input_is_taken(source: str, sink: str) -> None:
    assert len(from_to(source, sink).nodes) == 2
