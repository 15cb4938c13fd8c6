"""Decisions about the number of workers, and the loads they were made from, as text and as JSON values. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pipeline.cli.progress import duration
from pipeline.facts import JobRecord
from pipeline.pools import POOL
from pipeline.scaling.decision import Decision
from pipeline.scaling.load import Load, StageLoad
from pipeline.scaling.policies import Need
from pipeline.scaling.settings import Scaling
from pipeline.wording import counted

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


def scaling_lines(record: JobRecord, now_ms: int) -> list[str]:
    """A line of `celeriac status` for each pool that is scaled."""
    lines = []
    for pool, size in record.scaled.items():
        ago = duration((now_ms - size.scaled_at_ms) / 1000)
        changed = f"changed {ago} ago" if size.scaled_at_ms else "not changed yet"
        lines.append(
            f"{_of_pool(pool)}{counted(size.workers_wanted, 'worker')} wanted, {bounds(size.scaling)}, {changed};"
            f" celeriac autoscale {record.job} says why"
        )
    return lines


def scaling_json(record: JobRecord) -> dict[str, Any] | None:
    """The settings of the pool `main`, what is wanted by now, and those of other pools; None where all is fixed."""
    found = {
        pool: {
            **msgspec.to_builtins(size.scaling),
            "workers_wanted": size.workers_wanted,
            "scaled_at_ms": size.scaled_at_ms,
        }
        for pool, size in record.scaled.items()
    }
    main = found.pop(POOL, {})
    return {**main, **({"pools": found} if found else {})} or None


def bounds(scaling: Scaling) -> str:
    return f"{scaling.minimum}..{scaling.maximum} by {scaling.policy}"


def decision_lines(decision: Decision) -> list[str]:
    """What was decided, why, and the table of its facts."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(decision.at_ms / 1000))
    change = f"{decision.before} -> {decision.wanted}" if decision.is_change else f"stays {decision.wanted}"
    lines = [f"{when}  {_of_pool(decision.pool)}{change}  {decision.kind.value}: {decision.why}"]
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
    return [f"measured for {load.seconds:.0f} s with {counted(load.workers, 'worker')}{others}", *lines]


def _of_pool(pool: str) -> str:
    return "" if pool == POOL else f"pool {pool}: "


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
