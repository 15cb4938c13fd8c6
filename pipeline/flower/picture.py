"""The JSON of the Pipelines pages, from the facts of jobs. Pure; times are milliseconds by the clock of Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pipeline.facts import JobFacts, JobRecord, PartitionFacts, WorkerFacts, still_stages
from pipeline.flower.history import NO_LAG, History, Lag
from pipeline.flower.layout import cells, edges
from pipeline.plan import StagePlan
from pipeline.store.letters import DeadLetter

SHOWN_PARTITIONS: Final = 1000
SHOWN_LETTERS: Final = 20
SHOWN_CHARACTERS: Final = 4000
"""Of an error or a traceback: a page that is read each second must stay small."""


def jobs_picture(records: Sequence[JobRecord], total: int, unreadable: Sequence[str]) -> dict[str, Any]:
    """The list of jobs, newest first. `total` counts those left out too; `unreadable` are of other versions."""
    newest = sorted(records, key=lambda record: (-record.made_at_ms, record.job))
    return {"jobs": [_record(record) for record in newest], "total": total, "unreadable": list(unreadable)}


def job_picture(facts: JobFacts, letters: Sequence[DeadLetter], history: History) -> dict[str, Any]:
    """One job: its stages as a drawing, its partitions with owners and tokens, workers, dead letters.

    `history` must hold the look at `facts` already; `letters` are the oldest dead letters.
    """
    lags = [history.lag(index, partition, facts.now_ms) for index, partition in enumerate(facts.partitions)]
    rates = [history.rates(index) for index in range(len(facts.partitions))]
    rows = list(zip(facts.partitions, lags, rates, strict=True))
    return {
        **_record(facts.record),
        "now_ms": facts.now_ms,
        "leader": facts.leader,
        "generation": facts.record.generation,
        "is_gate_closed": facts.record.gate == "closed",
        "stages": _stages(facts, rows),
        "edges": [{"from": one, "to": other} for one, other in edges(facts.record.plan)],
        "partitions": [_partition(*row, _is_still(row[0], facts)) for row in rows[:SHOWN_PARTITIONS]],
        "partitions_total": len(rows),
        "workers": [_worker(worker, facts) for worker in facts.workers],
        "alarms": [alarm.text for alarm in facts.alarms],
        "dead_letters": facts.dead_letters,
        "held": facts.held,
        "letters": [_letter(letter, facts) for letter in letters[:SHOWN_LETTERS]],
    }


_Row = tuple[PartitionFacts, Lag, tuple[float, float]]


def _record(record: JobRecord) -> dict[str, Any]:
    return {
        "job": record.job,
        "pipeline": record.plan.pipeline,
        "state": record.state.value,
        "reason": record.reason[:SHOWN_CHARACTERS],
        "made_at_ms": record.made_at_ms,
        "changed_at_ms": record.changed_at_ms,
    }


def _stages(facts: JobFacts, rows: Sequence[_Row]) -> list[dict[str, Any]]:
    plan, still = facts.record.plan, still_stages(facts.record)
    return [
        {
            "column": cell.column,
            "row": cell.row,
            "is_paused": stage.name in still,
            **_stage(stage, [row for row in rows if row[0].stage == stage.index]),
        }
        for stage, cell in zip(plan.stages, cells(plan), strict=True)
    ]


def _stage(stage: StagePlan, rows: Sequence[_Row]) -> dict[str, Any]:
    members = [partition for partition, _, _ in rows]
    lag = max((lag for _, lag, _ in rows), key=lambda lag: (lag.ms, lag.is_least), default=NO_LAG)
    counts = ("taken", "emitted", "filtered", "duplicate", "late", "skipped", "dead", "backlog", "backlog_bytes")
    return {
        "index": stage.index,
        "name": stage.name,
        "keyed": stage.keyed,
        "operators": [name for name in stage.nodes if name != stage.name and name not in stage.sinks],
        "sinks": list(stage.sinks),
        "partitions": len(members),
        "done": sum(partition.done for partition in members),
        "unowned": sum(not partition.owner for partition in members),
        "waiting": sum(partition.ring == "w" for partition in members),
        "taken_rate": round(sum(rates[0] for _, _, rates in rows), 1),
        "emitted_rate": round(sum(rates[1] for _, _, rates in rows), 1),
        "lag_ms": lag.ms,
        "is_lag_least": lag.is_least,
        **{name: sum(getattr(partition, name) for partition in members) for name in counts},
    }


def _is_still(partition: PartitionFacts, facts: JobFacts) -> bool:
    return facts.record.plan.stage_name(partition.stage) in still_stages(facts.record)


def _partition(partition: PartitionFacts, lag: Lag, rates: tuple[float, float], is_still: bool) -> dict[str, Any]:
    return {
        "name": partition.name,
        "stage": partition.stage,
        "state": partition_state(partition, is_still=is_still),
        "owner": partition.owner,
        "incarnation": partition.incarnation,
        "term": partition.term,
        "token": partition.token,
        "position": str(partition.position),
        "taken": partition.taken,
        "taken_rate": round(rates[0], 1),
        "backlog": partition.backlog,
        "lag_ms": lag.ms,
        "is_lag_least": lag.is_least,
        "tickets": partition.queued,
        "dead": partition.dead,
    }


def partition_state(partition: PartitionFacts, *, is_still: bool = False) -> str:
    """What a partition does, in words."""
    if partition.done:
        return "done"
    if not partition.owner:
        return "no owner"
    if is_still:
        return "its stage is paused"
    match partition.ring:
        case "w":
            return "waits for a full inbox"
        case "g":
            return "waits for keys of others"
        case "1":
            return "at work"
        case _:
            return "idle"


def _worker(worker: WorkerFacts, facts: JobFacts) -> dict[str, Any]:
    mine = (worker.name, worker.incarnation)
    return {
        "name": worker.name,
        "incarnation": worker.incarnation,
        "state": _worker_state(worker, facts.record.plan.limits.lease_seconds),
        "age_seconds": round(worker.age_seconds, 1),
        "partitions": sum((partition.owner, partition.incarnation) == mine for partition in facts.partitions),
    }


def _worker_state(worker: WorkerFacts, lease_seconds: float) -> str:
    if worker.is_reported_dead:
        return "dead"
    if worker.report.get("stopping"):
        return "stopped"
    return "silent" if worker.age_seconds > lease_seconds else "alive"


def _letter(letter: DeadLetter, facts: JobFacts) -> dict[str, Any]:
    return {
        "id": letter.id,
        "at_ms": int(letter.id.partition("-")[0]),
        "partition": f"{letter.stage}.{letter.partition}",
        "operator": letter.operator or facts.record.plan.stage_name(letter.stage),
        "error": letter.error[:SHOWN_CHARACTERS],
        "traceback": letter.traceback[-SHOWN_CHARACTERS:],
    }
