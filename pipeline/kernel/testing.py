"""Runs an operator or a whole graph by hand, for tests: one process, no threads, no Redis, no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.graph import Graph, KeyBy, Keyed, Sink, SinkSpec, Source, SourceSpec
from pipeline.kernel.chain import concatenate
from pipeline.kernel.contract import KeyedOperator, Step
from pipeline.kernel.stage import StageKernel
from pipeline.plan import compile_plan
from pipeline.records import MAX_TIME, Batch, Timer
from pipeline.settings import Limits


def graph_of(operator: KeyedOperator) -> Graph:
    """A graph of this operator alone: source "in", key_by "by", the operator as "op", sink "out"."""
    nodes = (
        Source("in", SourceSpec("iterable")),
        KeyBy("by", ("in",), lambda value: value),
        Keyed("op", ("by",), operator),
        Sink("out", ("op",), SinkSpec("console"), "key"),
    )
    return Graph("test", nodes)


class Harness:
    """A job of one partition that is stepped by hand. Everything in it may be read and set between steps.

    kernels: stage -> its kernel. state: operator -> key -> state. timers: those set and not fired.
    outputs: sink -> its batches so far. filtered: records dropped so far. first: the stage that `push` takes.
    """

    def __init__(self, subject: Graph | KeyedOperator) -> None:
        graph = subject if isinstance(subject, Graph) else graph_of(subject)
        plan = compile_plan(graph, 1, Limits())
        self.kernels = {stage.name: StageKernel(graph, stage) for stage in plan.stages}
        self._stage_of = {
            operator: name for name, kernel in self.kernels.items() for operator in kernel.keyed_operators
        }
        self._sinks = frozenset(sink.name for sink in plan.sinks)
        self.first = next(stage.name for stage in plan.stages if isinstance(subject, Graph) or stage.keyed)
        self.state: dict[str, dict[Any, Any]] = {name: {} for name in self._stage_of}
        self.timers: set[Timer] = set()
        self.outputs: dict[str, list[Batch]] = {name: [] for name in self._sinks}
        self.filtered = 0

    def push(self, batch: Batch, stage: str = "") -> Step:
        """Runs a batch through a stage (the first, unless named) and all behind it. Gives its step."""
        return self._settle(self.kernels[stage or self.first].process(batch, self.state))

    def fire(self, until: int = MAX_TIME) -> None:
        """Fires all timers that are due, upstream stages first, and those that firing sets."""
        for stage, kernel in self.kernels.items():
            while due := self._due(stage, until):
                self._settle(kernel.fire(due, self.state))

    def _due(self, stage: str, until: int) -> list[Timer]:
        due = [timer for timer in self.timers if timer.due <= until]
        return [timer for timer in due if self._stage_of[timer.operator] == stage]

    def _settle(self, step: Step) -> Step:
        self.filtered += step.filtered
        self.timers.difference_update(step.timers_cleared)
        self.timers.update(step.timers_set)
        for edge, batch in step.outputs.items():
            if edge in self._sinks:
                self.outputs[edge].append(batch)
            else:
                self.push(batch, edge)
        return step


def run(subject: Graph | KeyedOperator, batches: Iterable[Batch] | Mapping[str, Iterable[Batch]]) -> dict[str, Batch]:
    """What each sink received when the batches have gone through and the input has ended.

    Give a mapping of source name -> batches where there are several sources. The batches of an operator have
    keys, and its sink is "out".
    """
    harness = Harness(subject)
    given = batches if isinstance(batches, Mapping) else {harness.first: batches}
    for stage, parts in given.items():
        for batch in parts:
            harness.push(batch, stage)
    harness.fire()
    return {sink: concatenate(parts) if parts else Batch([]) for sink, parts in harness.outputs.items()}
