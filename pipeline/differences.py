"""What is otherwise in one version of a pipeline than in another, by names. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.plan import Plan, StagePlan


def plan_differences(old: Plan, new: Plan) -> list[str]:
    """Lines for a person; nothing when only user functions, limits or numbers of partitions can differ."""
    if old.fingerprint == new.fingerprint:
        return []
    found = list(_named("pipeline", {old.pipeline: 0}, {new.pipeline: 0}))
    found += _named("operator", _nodes(old), _nodes(new))
    found += _named("source", _by_name(old.sources), _by_name(new.sources))
    found += _named("sink", _by_name(old.sinks), _by_name(new.sinks))
    found += _named("operator with state", _by_name(old.states, "operator"), _by_name(new.states, "operator"))
    return list(dict.fromkeys(found)) or ["the kind of an operator, the field of a key, or a program is another one"]


def _named(kind: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    yield from (f"{kind} {name!r} is gone" for name in old if name not in new)
    yield from (f"{kind} {name!r} is new" for name in new if name not in old)
    yield from (f"{kind} {name!r} is another one" for name in new if name in old and old[name] != new[name])


def _nodes(plan: Plan) -> dict[str, Any]:
    """Name of each operator -> the stages that it is in, and what is done about their errors."""
    found: dict[str, list[Any]] = {}
    for stage in plan.stages:
        for name in stage.nodes:
            found.setdefault(name, []).append(_place(stage))
    return dict(found)


def _place(stage: StagePlan) -> Any:
    return stage.name, stage.on_error


def _by_name(rows: Any, name: str = "name") -> dict[str, Any]:
    return {getattr(row, name): row for row in rows}
