"""The plan: a graph cut into stages, as data that Redis stores and every process of a job reads.

A stage begins at a source (an entry stage) or at a KeyBy node (a keyed stage) and holds every node reachable from
there without passing another KeyBy. A node behind a Union may stand in several stages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from typing import Any, Final

import msgspec

from pipeline.errors import DecodingError
from pipeline.graph import External, Graph, KeyBy, Keyed, Node, Sink, Source, Transform
from pipeline.policies import GIVE_UP, ErrorPolicy
from pipeline.pools import POOL
from pipeline.settings import Limits

PROTOCOL = 2
"""Version of keys, headers, payloads and scripts. A process of another version refuses the job."""


class StagePlan(msgspec.Struct, frozen=True):
    """One stage.

    index: its place in the plan; upstream stages have lower numbers.
    name: the name of its root node. nodes: names of its nodes in order, root first.
    exchanges: name of a KeyBy node in this stage -> index of the stage it feeds.
    sinks: names of the Sink nodes in this stage.
    upstream: indices of the stages that feed this one; empty for an entry stage.
    on_error: what is done about records that fail in it.
    partitions: how many it ever had at most: all of them exist, with their counts and logs.
    active: how many of them serve its keys now; None for all. The others have ended.
    pool: its partitions belong to workers of this pool only.
    """

    index: int
    name: str
    keyed: bool
    partitions: int
    nodes: tuple[str, ...]
    exchanges: dict[str, int]
    sinks: tuple[str, ...]
    upstream: tuple[int, ...]
    on_error: ErrorPolicy = GIVE_UP
    active: int | None = None
    pool: str = POOL

    @property
    def serving(self) -> int:
        """The number of partitions that serve now: keys go to 0 .. serving - 1, by `first_table`."""
        return self.partitions if self.active is None else self.active


class SinkPlan(msgspec.Struct, frozen=True):
    """A sink as the publisher needs it: `options` holds JSON values."""

    name: str
    format: str
    path: str
    options: dict[str, Any]
    key_field: str | None


class SourcePlan(msgspec.Struct, frozen=True):
    """A source as those outside its process need it: `options` holds JSON values."""

    name: str
    format: str
    options: dict[str, Any]


PRODUCER_FORMAT = "producer"
"""Sources that nobody reads: applications send to them."""

FOLLOWED_FORMATS = ("generator", "sql", "redis_stream", "kafka")
"""Sources that are read from a position which Redis keeps; so are files that grow."""


def is_followed(format: str, options: Mapping[str, Any]) -> bool:
    """Whether a source is read from a position which Redis keeps, and not as splits that are counted."""
    return format in FOLLOWED_FORMATS or bool(options.get("follow"))


def is_endless(format: str, options: Mapping[str, Any]) -> bool:
    """Whether a source has no end, so that its job runs until it is drained."""
    return format == PRODUCER_FORMAT or (is_followed(format, options) and options.get("poll_seconds") is not None)


STREAM_FORMATS = ("console", "stream")
"""Sinks that are output streams in Redis; all others write files."""


def stream_name(sink: SinkPlan) -> str:
    """The name under which a stream sink's output is read."""
    return str(sink.options.get("name", sink.name))


ECHO: Final = "~shadow."
"""What the names of echoes begin with."""


def echo_name(sink: str) -> str:
    """The stream of all that a sink is given, for whoever compares that with what a shadow gives."""
    return ECHO + sink


def stream_names(plan: Plan) -> list[str]:
    """The output streams of a job, by the names under which they are read, each once; its echoes are the last ones."""
    names = [stream_name(sink) for sink in plan.sinks if sink.format in STREAM_FORMATS]
    if plan.has_echoes:
        names += [echo_name(sink.name) for sink in plan.sinks]
    return list(dict.fromkeys(names))


def readable_names(plan: Plan) -> list[str]:
    """Those that are for people and programs."""
    return [name for name in stream_names(plan) if not name.startswith(ECHO)]


class StatePlan(msgspec.Struct, frozen=True):
    """An operator with state, as those need it who read the state without the pipeline's file.

    aggregates: names of the built-in aggregations that turn its state into its result: one, or those of a dict by
    field, "" for one of the user's own. None: the state is the result.
    """

    operator: str
    stage: int
    aggregates: str | dict[str, str] | None = None


MOST_PARTITIONS: Final = 65_536
"""Of one stage, in a plan that is believed."""

_BROKEN: Final = (
    "another program has written to the hash of the job, or this Redis came back damaged: run it under a new id"
)


class _Protocol(msgspec.Struct):
    """Read first: a plan of another version may have any other form."""

    protocol: int


class Plan(msgspec.Struct, frozen=True):
    """has_echoes: each sink's records also go to a stream, newest kept, while a shadow is compared with the job.

    is_shadow: its sinks are such streams only; see `pipeline.shadowing.holding`.
    """

    protocol: int
    pipeline: str
    fingerprint: str
    stages: tuple[StagePlan, ...]
    sinks: tuple[SinkPlan, ...]
    limits: Limits
    sources: tuple[SourcePlan, ...] = ()
    states: tuple[StatePlan, ...] = ()
    has_echoes: bool = False
    is_shadow: bool = False

    def stage(self, index: int) -> StagePlan:
        return self.stages[index]

    def stage_name(self, index: int) -> str:
        """What people call a stage; its number where the plan has none."""
        return self.stages[index].name if 0 <= index < len(self.stages) else str(index)

    def entry_stage(self, source: str) -> StagePlan:
        """The stage that the source feeds. Raises KeyError."""
        for stage in self.stages:
            if not stage.keyed and stage.name == source:
                return stage
        raise KeyError(source)

    def up_to(self, index: int) -> tuple[StagePlan, ...]:
        """The stage, and behind it all whose records reach it, downstream first."""
        wanted = {index}
        for stage in reversed(self.stages):
            if stage.index in wanted:
                wanted.update(stage.upstream)
        return tuple(stage for stage in reversed(self.stages) if stage.index in wanted)

    def rescaled(self, index: int, serving: int) -> Plan:
        """The plan with another number of partitions that serve the stage; those that are too many stay, ended."""
        stage = self.stages[index]
        most = max(stage.partitions, serving)
        changed = msgspec.structs.replace(stage, partitions=most, active=None if serving == most else serving)
        return msgspec.structs.replace(self, stages=(*self.stages[:index], changed, *self.stages[index + 1 :]))

    def concerned_by(self, after: Plan) -> frozenset[int]:
        """The stages of which something in Redis is another when this plan becomes `after` by one step: those that have
        changed and those that they feed; all, when more than stages has changed.
        """
        if msgspec.structs.replace(self, stages=after.stages) != after or len(self.stages) != len(after.stages):
            return frozenset(stage.index for stage in after.stages)
        changed = self.changed_in(after)
        return changed.union(*(after.stage(index).exchanges.values() for index in changed))

    def changed_in(self, after: Plan) -> frozenset[int]:
        """The stages that are otherwise in `after`, which has as many."""
        return frozenset(new.index for old, new in zip(self.stages, after.stages, strict=True) if old != new)

    def pool_of(self, index: int) -> str:
        """The pool whose workers run a stage; `main` where the plan has no such stage."""
        return self.stages[index].pool if 0 <= index < len(self.stages) else POOL

    def pools(self) -> list[str]:
        """The pools that its stages need, each once, upstream first."""
        return list(dict.fromkeys(stage.pool for stage in self.stages))

    def source(self, name: str) -> SourcePlan | None:
        """The source of that name, or None."""
        return next((source for source in self.sources if source.name == name), None)

    def partitions(self) -> list[tuple[int, int]]:
        """All (stage, partition) of the job, upstream first."""
        return [(stage.index, number) for stage in self.stages for number in range(stage.partitions)]

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Plan:
        """Raises DecodingError, also for a plan of another protocol version."""
        try:
            protocol = msgspec.json.decode(data, type=_Protocol).protocol
            plan = msgspec.json.decode(data, type=cls) if protocol == PROTOCOL else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DecodingError(f"the stored plan cannot be read: {error}", _BROKEN) from error
        if plan is None:
            raise DecodingError(
                f"the job speaks protocol {protocol}, this program {PROTOCOL}",
                hint="run it with the version of celeriac that submitted it",
            )
        if not plan._is_whole():
            raise DecodingError("the stored plan cannot be read: its stages do not fit together", _BROKEN)
        return plan

    def _is_whole(self) -> bool:
        """Whether stages stand in their order, and each refers only to others that there are."""
        known = range(len(self.stages))
        return all(
            stage.index == place
            and 1 <= stage.serving <= stage.partitions <= MOST_PARTITIONS
            and all(place < to < len(known) for to in stage.exchanges.values())
            and all(0 <= source < place for source in stage.upstream)
            for place, stage in enumerate(self.stages)
        ) and all(state.stage in known for state in self.states)


def compile_plan(graph: Graph, partitions: int, limits: Limits, *, cuts_frames: bool = False) -> Plan:
    """Cuts a valid graph into stages of `partitions` partitions each.

    With `cuts_frames` a DataFrame operator begins a stage of its own, without keys, under the policy of one before it.
    """
    kinds = (Source, KeyBy, Transform) if cuts_frames else (Source, KeyBy)
    roots = [node for node in graph.nodes if isinstance(node, kinds)]
    index = {root.name: number for number, root in enumerate(roots)}
    members = {root.name: _members(graph, root.name, index) for root in roots}
    stages: list[StagePlan] = []
    for root in roots:
        inside = members[root.name]
        exchanges = {name: index[name] for name in inside if name != root.name and name in index}
        upstream = tuple(
            index[other.name]
            for other in roots
            if not isinstance(root, Source) and other.name != root.name and root.name in members[other.name]
        )
        said = root if isinstance(root, Source | KeyBy) else stages[upstream[0]]
        stages.append(
            StagePlan(
                index=index[root.name],
                name=root.name,
                keyed=isinstance(root, KeyBy),
                partitions=partitions,
                nodes=tuple(name for name in inside if name == root.name or name not in exchanges),
                exchanges=exchanges,
                sinks=tuple(name for name in inside if isinstance(graph.node(name), Sink)),
                upstream=upstream,
                on_error=said.on_error,
                pool=said.pool,
            )
        )
    sinks = tuple(
        SinkPlan(node.name, node.spec.format, node.spec.path, node.spec.options, node.key_field)
        for node in graph.nodes
        if isinstance(node, Sink)
    )
    sources = tuple(
        SourcePlan(node.name, node.spec.format, node.spec.options) for node in graph.nodes if isinstance(node, Source)
    )
    states = tuple(
        StatePlan(node.name, stage.index, node.operator.aggregates())
        for stage in stages
        for node in graph.nodes
        if isinstance(node, Keyed) and node.name in stage.nodes
    )
    return Plan(PROTOCOL, graph.name, fingerprint(graph), tuple(stages), sinks, limits, sources, states)


def fingerprint(graph: Graph) -> str:
    """A short digest of the graph's structure: names, kinds, inputs, sources and sinks; not of user functions."""
    facts = [[type(node).__name__, node.name, list(node.inputs), _details(node)] for node in graph.nodes]
    return hashlib.sha256(msgspec.json.encode([graph.name, facts], order="sorted")).hexdigest()[:16]


def _details(node: Node) -> list[Any]:
    match node:
        case Source():
            return [node.spec.format, node.spec.path, node.spec.options, *_policy(node.on_error)]
        case Sink():
            return [node.spec.format, node.spec.path, node.spec.options, node.key_field]
        case Keyed():
            return [type(node.operator).__name__]
        case KeyBy():
            return [node.field, *_policy(node.on_error)]
        case External():
            return [node.argv, node.protocol]
        case _:
            return []


def _policy(policy: ErrorPolicy) -> list[Any]:
    return [] if policy == GIVE_UP else [msgspec.to_builtins(policy)]


def _members(graph: Graph, root: str, roots: Container[str]) -> list[str]:
    """The root, every node reachable from it without passing another root, and those roots, in order."""
    inside = {root}
    for node in graph.nodes:
        for source in node.inputs:
            behind_exchange = source != root and source in roots
            if source in inside and not behind_exchange:
                inside.add(node.name)
    return [node.name for node in graph.nodes if node.name in inside]
