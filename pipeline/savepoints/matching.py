"""What of a savepoint goes where in the pipeline that it is restored into. Names decide. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.plan import Plan, stream_names


@dataclass(frozen=True, slots=True)
class Matching:
    """stages: name of a saved stage -> its index in the new plan. operators: name -> index of the new stage it is in.

    is_same: stages, exchanges and partitions are all the same, so that everything keeps its place and number.
    dropped: lines on what the savepoint has and the pipeline has not, by kind and name; added: the other way round.
    """

    stages: dict[str, int]
    operators: dict[str, int]
    sources: frozenset[str]
    streams: frozenset[str]
    is_same: bool
    dropped: dict[tuple[str, str], str]
    added: tuple[str, ...]


def match(saved: Plan, new: Plan) -> Matching:
    """Stages, operators with state, sources and output streams by their names."""
    stages = {stage.name: stage.index for stage in new.stages}
    operators = {each.operator: each.stage for each in new.states}
    old_operators = {each.operator for each in saved.states}
    old_stages = {stage.name for stage in saved.stages}
    old_sources, sources = _sources(saved), _sources(new)
    streams = frozenset(stream_names(saved)) & frozenset(stream_names(new))
    dropped = {("operator", name): f"operator {name!r} and its state" for name in old_operators - operators.keys()}
    for name in old_sources - sources:
        dropped["source", name] = f"source {name!r} and where it stands"
    for stage in saved.stages:
        if stage.keyed and stage.name not in stages:
            dropped["stage", stage.name] = f"stage {stage.name!r} and the records that were on their way to it"
    added = [f"operator {name!r} begins without state" for name in operators if name not in old_operators]
    added += [f"source {name!r} is read from its beginning" for name in sources - old_sources]
    added += [f"stage {stage.name!r} is new" for stage in new.stages if stage.keyed and stage.name not in old_stages]
    return Matching(
        stages={stage.name: stages[stage.name] for stage in saved.stages if stage.name in stages},
        operators={name: operators[name] for name in operators if name in old_operators},
        sources=frozenset(old_sources & sources),
        streams=streams,
        is_same=_shape(saved) == _shape(new),
        dropped=dict(sorted(dropped.items())),
        added=tuple(sorted(added)),
    )


def _sources(plan: Plan) -> frozenset[str]:
    return frozenset(stage.name for stage in plan.stages if not stage.keyed)


def _shape(plan: Plan) -> list[object]:
    found: list[object] = [
        (
            stage.index,
            stage.name,
            stage.keyed,
            stage.partitions,
            stage.serving,
            sorted(stage.exchanges.items()),
            stage.upstream,
        )
        for stage in plan.stages
    ]
    return [*found, sorted(sink for stage in plan.stages for sink in stage.sinks), stream_names(plan)]
