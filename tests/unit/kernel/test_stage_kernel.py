"""Stages: the tree of nodes, edges, diamonds, timers in order, and purity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pipeline.aggregates import count
from pipeline.errors import PipelineError
from pipeline.graph import (
    Filter,
    FlatMap,
    Graph,
    KeyBy,
    Keyed,
    Map,
    Node,
    Sink,
    SinkSpec,
    Source,
    SourceSpec,
    Union,
)
from pipeline.kernel.contract import Emitted, KeyedOperator, TimerChanges
from pipeline.kernel.faults import OperatorError
from pipeline.kernel.operators import Aggregate, Last, Reduce
from pipeline.kernel.stage import StageKernel
from pipeline.kernel.testing import Harness, graph_of, run
from pipeline.plan import compile_plan
from pipeline.records import MAX_TIME, Batch, Timer
from pipeline.settings import Limits


def a_source(name: str = "in") -> Source:
    return Source(name, SourceSpec("iterable"))


def a_sink(name: str, *inputs: str) -> Sink:
    return Sink(name, inputs, SinkSpec("console"), None)


def kernels(*nodes: Node) -> dict[str, StageKernel]:
    graph = Graph("g", nodes)
    return {stage.name: StageKernel(graph, stage) for stage in compile_plan(graph, 2, Limits()).stages}


WORDS = Graph(
    "words",
    (
        a_source(),
        FlatMap("split", ("in",), str.split),
        Filter("long", ("split",), lambda word: len(word) > 1),
        KeyBy("word", ("long",), lambda word: word),
        Keyed("n", ("word",), Aggregate(count())),
        Keyed("last", ("n",), Last()),
        a_sink("running", "n"),
        a_sink("final", "last"),
    ),
)


@dataclass(frozen=True, eq=False)
class Alarm(KeyedOperator):
    """Each value is a list of ("set" or "clear", due); a timer emits [name, due], then plays `then[due]`."""

    name: str
    then: dict[int, list[tuple[str, int]]]

    def process(self, keys: list[Any], values: list[Any], state: dict[Any, Any], timers: TimerChanges) -> Emitted:
        for key, value in zip(keys, values, strict=True):
            state[key] = state.get(key, 0) + 1
            self._play(key, value if isinstance(value[0], tuple) else [], timers)
        return Emitted([], [])

    def on_timer(
        self, keys: Sequence[Any], dues: Sequence[int], state: dict[Any, Any], timers: TimerChanges
    ) -> Emitted:
        for key, due in zip(keys, dues, strict=True):
            state[key] = due
            self._play(key, self.then.get(due, []), timers)
        return Emitted([[self.name, due] for due in dues], list(range(len(dues))))

    @staticmethod
    def _play(key: Any, changes: list[tuple[str, int]], timers: TimerChanges) -> None:
        for verb, due in changes:
            (timers.set if verb == "set" else timers.clear)(key, due)


def alarms(**then: dict[int, list[tuple[str, int]]]) -> Harness:
    """Alarms in a row behind each other; all they emit ends in the sink "out", the first one's first."""
    nodes: list[Node] = [a_source(), KeyBy("by", ("in",), lambda value: value)]
    before = "by"
    for name, changes in then.items():
        nodes.append(Keyed(name, (before,), Alarm(name, changes)))
        before = name
    harness = Harness(Graph("g", (*nodes, a_sink("out", *then))))
    harness.first = "by"
    return harness


def emitted(harness: Harness) -> list[Any]:
    return [value for batch in harness.outputs["out"] for value in batch.values]


def test_words_are_counted_across_an_exchange() -> None:
    out = run(WORDS, [Batch(["to be or", "not a to"]), Batch(["be to"])])

    assert out["running"].keys == ["to", "be", "or", "not", "to", "be", "to"]
    assert out["running"].values == [1, 1, 1, 1, 2, 2, 3]
    assert dict(zip(out["final"].keys or [], out["final"].values, strict=True)) == {"to": 3, "be": 2, "or": 1, "not": 1}
    assert out["final"].times is None


def test_a_step_says_everything_that_must_be_committed() -> None:
    harness = Harness(WORDS)

    entry = harness.push(Batch(["a b to be"], times=[5], ids=["x"]))
    keyed = harness.push(Batch([0, 0], ["to", "or"], [6, 7]), "word")

    assert entry.outputs == {
        "word": Batch(["to", "be"], ["to", "be"], [5, 5], ["x/split/2", "x/split/3"]),
    }
    assert (entry.changed, entry.filtered, harness.filtered) == ({}, 2, 2)
    assert keyed.outputs == {"running": Batch([2, 1], ["to", "or"], [6, 7])}
    assert keyed.changed == {"n": {"to", "or"}, "last": {"to", "or"}}
    assert keyed.timers_set == [Timer("last", "or", MAX_TIME)]
    assert keyed.timers_cleared == []


def test_a_kernel_knows_its_stateful_operators_in_order() -> None:
    graph_kernels = {name: Harness(WORDS).kernels[name].keyed_operators for name in ("in", "word")}

    assert graph_kernels == {"in": (), "word": ("n", "last")}


def test_the_root_does_no_work_itself() -> None:
    stage = kernels(a_source(), KeyBy("by", ("in",), lambda _: 1 // 0), a_sink("out", "by"))["by"]

    assert stage.process(Batch([1], ["a"]), {}).outputs == {"out": Batch([1], ["a"])}


def test_branches_get_the_same_records_and_a_diamond_joins_in_graph_order() -> None:
    stage = kernels(
        a_source(),
        Map("tens", ("in",), lambda value: value * 10),
        Filter("odd", ("in",), lambda value: value % 2),
        Union("both", ("tens", "odd")),
        KeyBy("by", ("both",), lambda value: value),
        a_sink("out", "both"),
        a_sink("raw", "in"),
    )["in"]

    step = stage.process(Batch([1, 2, 3]), {})

    assert step.outputs["by"] == Batch([10, 20, 30, 1, 3], [10, 20, 30, 1, 3])
    assert step.outputs["out"].values == [10, 20, 30, 1, 3]
    assert step.outputs["raw"].values == [1, 2, 3]
    assert step.filtered == 1


def test_a_stream_united_with_itself_has_each_record_twice() -> None:
    stage = kernels(a_source(), Union("twice", ("in", "in")), a_sink("out", "twice"))["in"]

    assert stage.process(Batch([1, 2]), {}).outputs["out"].values == [1, 2, 1, 2]


def test_a_node_behind_a_union_runs_in_each_stage_that_reaches_it() -> None:
    nodes = (
        a_source("left"),
        a_source("right"),
        KeyBy("by", ("left",), lambda value: value),
        Keyed("n", ("by",), Aggregate(count())),
        Union("both", ("n", "right")),
        Map("shown", ("both",), str),
        a_sink("out", "shown"),
    )
    stages = kernels(*nodes)

    assert set(stages) == {"left", "right", "by"}
    assert stages["left"].process(Batch(["x"]), {}).outputs == {"by": Batch(["x"], ["x"])}
    assert stages["right"].process(Batch([7]), {}).outputs == {"out": Batch(["7"])}
    assert stages["by"].process(Batch(["x"], ["x"]), {"n": {}}).outputs == {"out": Batch(["1"])}
    assert run(Graph("g", nodes), {"left": [Batch(["x"])], "right": [Batch([7])]})["out"].values == ["1", "7"]


def test_a_batch_that_is_filtered_out_wakes_nobody() -> None:
    stage = kernels(
        a_source(), Filter("none", ("in",), lambda _: False), KeyBy("by", ("none",), lambda v: v), a_sink("out", "by")
    )["in"]

    step = stage.process(Batch([1, 2]), {})

    assert (step.outputs, step.filtered) == ({}, 2)


def test_a_kernel_keeps_nothing_between_steps() -> None:
    stage = kernels(
        a_source(),
        KeyBy("by", ("in",), lambda value: value),
        Keyed("sum", ("by",), Reduce(lambda a, b: a + b)),
        a_sink("out", "sum"),
    )["by"]

    steps = [stage.process(Batch([1, 2], ["a", "a"]), {"sum": {}}) for _ in range(2)]

    assert steps[0] == steps[1]


def test_timers_fire_in_due_order_with_their_due_as_event_time() -> None:
    harness = alarms(first={})
    step = harness.push(Batch([[("set", 30)], [("set", 10)], [("set", 20)]], ["a", "b", "a"], [1, 2, 3]))

    harness.fire(20)

    assert step.timers_set == [Timer("first", "a", 30), Timer("first", "b", 10), Timer("first", "a", 20)]
    assert harness.outputs["out"] == [Batch([["first", 10], ["first", 20]], ["b", "a"], [10, 20])]
    assert harness.timers == {Timer("first", "a", 30)}


def test_the_last_word_on_a_timer_holds() -> None:
    harness = alarms(first={})

    step = harness.push(Batch([[("set", 5), ("clear", 5)], [("clear", 7), ("set", 7)]], ["a", "a"]))

    assert step.timers_set == [Timer("first", "a", 7)]
    assert step.timers_cleared == [Timer("first", "a", 5)]


def test_outputs_of_a_timer_reach_the_operators_behind_it_before_their_own_timers() -> None:
    harness = alarms(first={}, second={})
    harness.timers = {Timer("second", "a", 5), Timer("first", "a", 5), Timer("second", "a", 3)}

    step = harness.kernels["by"].fire(list(harness.timers), harness.state)

    assert step.outputs["out"].values == [["second", 3], ["first", 5], ["second", 5]]
    assert step.changed == {"first": {"a"}, "second": {"a"}}
    assert step.timers_cleared == [Timer("second", "a", 3), Timer("first", "a", 5), Timer("second", "a", 5)]
    assert harness.state == {"first": {"a": 5}, "second": {"a": 5}}


def test_a_timer_that_an_earlier_one_clears_does_not_fire() -> None:
    harness = alarms(first={1: [("clear", 2)]})
    harness.timers = {Timer("first", "a", 1), Timer("first", "a", 2), Timer("first", "b", 2)}

    harness.fire()

    assert [(batch.keys, batch.values) for batch in harness.outputs["out"]] == [
        (["a", "b"], [["first", 1], ["first", 2]])
    ]
    assert harness.timers == set()


def test_a_timer_given_twice_fires_once() -> None:
    harness = alarms(first={})

    step = harness.kernels["by"].fire([Timer("first", "a", 1)] * 2, harness.state)

    assert step.outputs["out"].values == [["first", 1]]


def test_a_timer_that_firing_sets_takes_its_place_before_later_ones() -> None:
    harness = alarms(first={1: [("set", 3)], 3: [("set", 4)]})
    harness.timers = {Timer("first", "a", 1), Timer("first", "a", 5)}

    harness.fire(5)

    assert emitted(harness) == [["first", due] for due in (1, 3, 4, 5)]
    assert harness.timers == set()


def test_firing_stops_early_and_leaves_the_rest_untouched() -> None:
    harness = alarms(first={1: [("set", 3)]})

    step = harness.kernels["by"].fire([Timer("first", "a", 1), Timer("first", "a", 5)], harness.state)

    assert step.timers_cleared == [Timer("first", "a", 1)]
    assert step.timers_set == [Timer("first", "a", 3)]


def test_a_timer_may_set_itself_again() -> None:
    harness = alarms(first={1: [("set", 1)]})

    step = harness.kernels["by"].fire([Timer("first", "a", 1)], harness.state)

    assert step.timers_set == [Timer("first", "a", 1)]
    assert step.timers_cleared == []


def test_outputs_of_the_end_of_input_carry_a_time_only_among_timed_ones() -> None:
    kernel = alarms(first={}).kernels["by"]
    end, early = Timer("first", "a", MAX_TIME), Timer("first", "a", 8)

    assert kernel.fire([end], {"first": {}}).outputs["out"].times is None
    assert kernel.fire([end, early], {"first": {}}).outputs["out"].times == [8, MAX_TIME]


def test_a_last_behind_a_last_emits_once() -> None:
    nodes = (
        a_source(),
        KeyBy("by", ("in",), lambda value: value),
        Keyed("one", ("by",), Last()),
        Keyed("two", ("one",), Last()),
        a_sink("out", "two"),
    )

    out = run(Graph("g", nodes), [Batch(["x", "y", "x"])])["out"]

    assert sorted(out.values) == ["x", "y"]


def test_a_timer_of_an_unknown_operator_is_refused() -> None:
    harness = alarms(first={})

    with pytest.raises(PipelineError, match="a timer of 'gone' is due, but stage 'by' has no such operator") as caught:
        harness.kernels["by"].fire([Timer("gone", "a", 1)], harness.state)

    assert caught.value.hint


def test_an_operator_without_timers_says_so_when_one_fires() -> None:
    harness = Harness(graph_of(Aggregate(count())))

    with pytest.raises(OperatorError, match="'op' failed: TypeError: Aggregate sets no timers, yet one fired"):
        harness.kernels["by"].fire([Timer("op", "a", 1)], harness.state)


def test_the_operator_behind_a_timer_is_blamed_for_its_own_fault() -> None:
    nodes = (
        a_source(),
        KeyBy("by", ("in",), lambda value: value),
        Keyed("last", ("by",), Last()),
        Map("half", ("last",), lambda value: value / 2),
        a_sink("out", "half"),
    )

    with pytest.raises(OperatorError, match="the operator 'half' failed: TypeError"):
        run(Graph("g", nodes), [Batch(["x"])])
