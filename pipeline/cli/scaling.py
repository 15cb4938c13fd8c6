"""Decisions about the number of workers, and the loads they were made from, as text and as JSON values. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pipeline.cli.progress import duration
from pipeline.facts import JobRecord
from pipeline.scaling.decision import Decision
from pipeline.scaling.load import Load, StageLoad
from pipeline.scaling.policies import Need
from pipeline.scaling.settings import Scaling

_HEAD: Final = (
    "stage",
    "partitions",
    "came/s",
    "taken/s",
    "backlog",
    "oldest",
    "busy",
    "one worker/s",
    "target/s",
    "needs",
)


def scaling_line(record: JobRecord, now_ms: int) -> str:
    """One line of `celeriac status`, for a job that is scaled."""
    assert record.scaling is not None
    ago = duration((now_ms - record.scaled_at_ms) / 1000)
    changed = f"changed {ago} ago" if record.scaled_at_ms else "not changed yet"
    return (
        f"{_count(record.workers_wanted)} wanted, {bounds(record.scaling)}, {changed};"
        f" celeriac autoscale {record.job} says why"
    )


def scaling_json(record: JobRecord) -> dict[str, Any] | None:
    """The settings, and what is wanted by now; None for a number that is fixed."""
    if record.scaling is None:
        return None
    settings = msgspec.to_builtins(record.scaling)
    return {**settings, "workers_wanted": record.workers_wanted, "scaled_at_ms": record.scaled_at_ms}


def bounds(scaling: Scaling) -> str:
    return f"{scaling.minimum}..{scaling.maximum} by {scaling.policy}"


def decision_lines(decision: Decision) -> list[str]:
    """What was decided, why, and the table of its facts."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(decision.at_ms / 1000))
    change = f"{decision.before} -> {decision.wanted}" if decision.is_change else f"stays {decision.wanted}"
    lines = [f"{when}  {change}  {decision.kind.value}: {decision.why}"]
    return (
        lines if decision.load is None else lines + [f"  {line}" for line in load_lines(decision.load, decision.needs)]
    )


def load_lines(load: Load, needs: Sequence[Need]) -> list[str]:
    """The table of a load: a line a stage, with what a policy has computed for it, where it has."""
    found = {need.stage: need for need in needs}
    rows = [_HEAD, *(_row(stage, found.get(stage.name)) for stage in load.stages)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(_cells(row, widths)).rstrip() for row in rows]
    others = f" and {load.others} that run by themselves" if load.others else ""
    return [f"measured for {load.seconds:.0f} s with {_count(load.workers)}{others}", *lines]


def _row(stage: StageLoad, need: Need | None) -> tuple[str, ...]:
    rate = stage.true_rate
    return (
        stage.name + (" (held back)" if stage.is_held_back and not stage.upstream else ""),
        str(stage.partitions),
        f"{stage.arrival_rate:,.0f}",
        f"{stage.taken_rate:,.0f}",
        f"{stage.backlog:,}" + (" (waits for its sink)" if stage.is_stopped else ""),
        f"{stage.oldest_seconds:.0f} s",
        f"{stage.busy_workers:.2f}",
        "?" if rate is None else f"{rate:,.0f}",
        "" if need is None else f"{need.target_rate:,.0f}",
        "" if need is None else f"{need.workers:.2f}",
    )


def _cells(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Names to the left, numbers to the right."""
    first, *rest = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]


def _count(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"
