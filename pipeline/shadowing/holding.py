"""Pipelines whose outputs are held back: each sink is a stream of Celeriac's own, under the name of its echo. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from pipeline.books import STREAM_PREFIX
from pipeline.graph import Graph, Sink, SinkSpec
from pipeline.keying import GROUPS
from pipeline.plan import Plan, SinkPlan, StagePlan, compile_plan, echo_name
from pipeline.savepoints.matching import Matching
from pipeline.savepoints.moving import Facts, Hashes, Inbox, SameMove
from pipeline.store.holds import Hold

_MOST_NAME: Final = 100
_SUFFIX: Final = "-shadow"


def shadow_of(job: str) -> str:
    """The id of a job's shadow."""
    return job[: _MOST_NAME - len(_SUFFIX)] + _SUFFIX


def held_back(graph: Graph) -> Graph:
    """The graph with nothing that writes outside of Redis."""
    nodes = (replace(node, spec=_spec(node.name)) if isinstance(node, Sink) else node for node in graph.nodes)
    return Graph(graph.name, tuple(nodes))


def _spec(sink: str) -> SinkSpec:
    return SinkSpec("stream", options={"name": echo_name(sink)})


def held_plan(plan: Plan) -> Plan:
    """A plan as if its graph had been held back. Its fingerprint is still that of the graph as it was."""
    sinks = tuple(
        SinkPlan(sink.name, "stream", "", {"name": echo_name(sink.name)}, sink.key_field) for sink in plan.sinks
    )
    return msgspec.structs.replace(plan, sinks=sinks, has_echoes=False, is_shadow=True)


def with_echoes(plan: Plan, *, has_echoes: bool) -> Plan:
    return msgspec.structs.replace(plan, has_echoes=has_echoes)


def plan_of(graph: Graph, running: Plan) -> Plan:
    """The plan of another version with the partitions and limits of the one that runs, where it has the same stages."""
    plan = compile_plan(graph, 1, running.limits)
    known = {stage.name: stage for stage in running.stages}
    stages = tuple(_with_partitions(stage, known.get(stage.name)) for stage in plan.stages)
    return msgspec.structs.replace(plan, stages=stages)


def _with_partitions(stage: StagePlan, running: StagePlan | None) -> StagePlan:
    if running is None:
        return stage
    return msgspec.structs.replace(stage, partitions=running.partitions, active=running.active)


def shadow_differences(running: Plan, new: Plan) -> list[str]:
    """Why `new` cannot be a shadow, in lines for a person: functions and operators may be others, all else must be the
    same, as a shadow gets the same input in the same partitions, and its state is to come under the same outputs.
    """
    found = [] if running.pipeline == new.pipeline else [f"pipeline {running.pipeline!r} is called {new.pipeline!r}"]
    for kind, old_rows, new_rows in (
        ("source", running.sources, new.sources),
        ("sink", running.sinks, new.sinks),
        ("stage", _stages(running), _stages(new)),
    ):
        found += _named(kind, {row.name: row for row in old_rows}, {row.name: row for row in new_rows})
    return found


def _stages(plan: Plan) -> list[StagePlan]:
    """What must be the same of each stage: not its operators."""
    return [msgspec.structs.replace(stage, nodes=()) for stage in plan.stages]


def _named(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{kind} {name!r} is gone" for name in old if name not in new)
    yield from (f"{kind} {name!r} is new" for name in new if name not in old)
    yield from (f"{kind} {name!r} is another one" for name in new if name in old and old[name] != new[name])


class ShadowMove(SameMove):
    """A savepoint becomes a shadow: every entry, number and count stays, but what sinks were given counts as echoes."""

    def hashes(self, inboxes: Mapping[tuple[int, int], Inbox], begun: Mapping[tuple[int, int], int]) -> Hashes:
        found = super().hashes(inboxes, begun)
        echoes = {sink.name: self.facts.get(f"outlog:{echo_name(sink.name)}", {}) for sink in self.new.sinks}
        for stage, partition in self.new.partitions():
            meta = found[f"meta:{stage}.{partition}"]
            sent = msgspec.json.decode(meta.get("sent", b"{}"), type=dict[str, int])
            kept = {to: count for to, count in sent.items() if to.replace(".", "").isdecimal() and "." in to}
            for sink in self.new.stage(stage).sinks:
                count = int(echoes[sink].get(f"{stage}.{partition}", b"0"))
                kept.update({STREAM_PREFIX + echo_name(sink): count} if count else {})
            meta.update(sent=msgspec.json.encode(kept), emitted=sum(kept.values()))
        return found


def shadow_move(
    saved: Plan, new: Plan, matching: Matching, facts: Facts, holds: Mapping[tuple[str, bytes], Hold]
) -> ShadowMove:
    assert matching.is_same, "shadow_differences has let another shape pass"
    return ShadowMove(saved, new, matching, facts, holds)


def group_keys(old: Plan, new: Plan) -> list[tuple[str, str]]:
    """What stands before and behind the key group in the names of all keys that hold what is known of keys.

    As `pipeline.store.keys` makes them, for stages that both have.
    """
    assert GROUPS == 256, "promote.lua counts with so many"
    found = []
    for stage in new.stages:
        if stage.keyed:
            found += [(f"{kind}:{stage.index}.", "") for kind in ("state", "held", "heldrecords")]
    operators = {(each.stage, each.operator) for plan in (old, new) for each in plan.states}
    found += [(f"timers:{stage}.", f":{operator}") for stage, operator in sorted(operators)]
    return found
