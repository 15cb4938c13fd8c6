"""What commands show of lifecycle operations: the one under way, and those that have ended."""

from __future__ import annotations

from typing import Any

from pipeline.facts import JobFacts
from pipeline.operations import About, Operation, PastOperation
from pipeline.wording import counted


def operation_words(facts: JobFacts, operation: Operation) -> str:
    """One line: what it is, since when, in which phase, and how far."""
    about, words = operation.about, operation.words(facts.now_ms)
    if about.kind == "upgrade":
        is_gone = operation.is_abandoned(facts.now_ms)
        gone = f"; its command is gone: `celeriac upgrade {facts.record.job} FILE` finishes it" if is_gone else ""
        return f"{words}, by {about.by}: {operation.done} of {counted(operation.total, 'worker')}{gone}"
    if about.kind == "shadow":
        is_gone = operation.is_abandoned(facts.now_ms)
        gone = "; its command is gone: the leader takes it away" if is_gone else ""
        return (
            f"{words}, by {about.by}: {counted(operation.done, 'result')} compared, {operation.total:,} otherwise{gone}"
            f" (`celeriac shadow {facts.record.job}` shows more)"
        )
    if about.kind == "burst":
        is_gone = operation.is_abandoned(facts.now_ms)
        gone = "; its command is gone: what Spark has not done yet goes back to workers" if is_gone else ""
        return (
            f"{words}, by {about.by}: {operation.done:,} of {counted(operation.total, 'record')} on {about.node}{gone}"
        )
    if about.kind == "backfill":
        gone = "; its command is gone, and nothing is changed" if operation.is_abandoned(facts.now_ms) else ""
        return f"{words}, by {about.by}: {operation.done:,} of {counted(operation.total, 'record')} of history{gone}"
    left = sum(part.is_switching for part in facts.partitions if part.stage == operation.stage)
    more = f", {counted(left, 'partition')} not through yet" if left else ""
    return f"{words}: from {about.before} to {counted(about.to, 'partition')}{more}"


def operation_json(facts: JobFacts) -> dict[str, Any] | None:
    """The one under way in `celeriac status --json`."""
    operation = facts.operation
    if operation is None:
        return None
    return {
        "kind": operation.about.kind,
        **about_json(operation.about),
        "phase": operation.phase.value,
        "begun_at_ms": operation.begun_at_ms,
        "switched_at_ms": operation.switched_at_ms,
        "done": operation.done,
        "total": operation.total,
        "is_abandoned": operation.is_abandoned(facts.now_ms),
    }


def about_json(about: About) -> dict[str, Any]:
    """What fields of it are not there for its kind are empty, or 0."""
    found = {"stage": about.stage, "before": about.before, "to": about.to, "by": about.by, "code": about.code}
    if about.kind == "burst":
        return {**found, "node": about.node, "cuts": about.cuts}
    return {**found, "keys": about.keys} if about.kind == "backfill" else found


def times_json(past: PastOperation) -> dict[str, Any]:
    return {"begun_at_ms": past.begun_at_ms, "switched_at_ms": past.switched_at_ms, "outcome": past.outcome}
