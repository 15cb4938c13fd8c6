"""Jobs and results as text and as JSON values. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.cli.progress import duration, plain_line, records_read, stage_rows
from pipeline.facts import JobFacts, JobRecord
from pipeline.plan import SinkPlan
from pipeline.sinks.publisher import Published
from pipeline.store.jobs import DeadLetter

SHOWN_LETTERS = 3


@dataclass(frozen=True, slots=True)
class Result:
    """What a finished run has to tell. `letters` are the oldest dead letters, `start_seconds` is part of the total."""

    facts: JobFacts
    sinks: Sequence[tuple[SinkPlan, Published]]
    letters: Sequence[DeadLetter]
    total_seconds: float
    start_seconds: float
    is_drained: bool


def result_lines(result: Result) -> list[str]:
    """The summary at the end of a run."""
    facts = result.facts
    how = "drained: the results hold what was read until then" if result.is_drained else "finished"
    lines = [f"job {facts.record.job} {how}", f"  read: {_count(records_read(facts), 'record')}"]
    lines += [f"  {sink.name}: {_published(published)}" for sink, published in result.sinks]
    for name, label in (("duplicate", "duplicates dropped"), ("late", "late records dropped")):
        total = sum(getattr(partition, name) for partition in facts.partitions)
        if total:
            lines.append(f"  {label}: {total:,}")
    lines += dead_letter_lines(facts.dead_letters, result.letters)
    started = duration(result.start_seconds)
    lines.append(f"  time: {duration(result.total_seconds)}, of which {started} to start")
    return lines


def dead_letter_lines(count: int, letters: Sequence[DeadLetter]) -> list[str]:
    """How many, and what was wrong with the first ones; nothing when there are none."""
    if not count:
        return []
    lines = [f"  dead letters: {_count(count, 'record')} given up"]
    lines += [f"    {letter.operator}: {_first_line(letter.error)}" for letter in letters[:SHOWN_LETTERS]]
    if count > len(letters[:SHOWN_LETTERS]):
        lines.append(f"    and {count - len(letters[:SHOWN_LETTERS]):,} more")
    return lines


def status_lines(facts: JobFacts, letters: Sequence[DeadLetter]) -> list[str]:
    """The page of `celeriac status`."""
    record = facts.record
    why = f": {record.reason}" if record.reason else ""
    lines = [
        f"job       {record.job}",
        f"pipeline  {record.plan.pipeline}",
        f"state     {record.state.value}{why}",
        f"made      {_instant(record.made_at_ms)}, changed {_instant(record.changed_at_ms)}",
        f"leader    {facts.leader or 'none'}",
        f"workers   {_workers(facts) or 'none'}",
        "stages",
    ]
    lines += [f"  {plain_line(row)}" for row in stage_rows(None, facts)]
    return lines + dead_letter_lines(facts.dead_letters, letters)


def status_json(facts: JobFacts, letters: Sequence[DeadLetter]) -> dict[str, Any]:
    """What `celeriac status --json` prints. Times are milliseconds since 1970 by the clock of Redis."""
    return {
        **job_json(facts.record),
        "now_ms": facts.now_ms,
        "leader": facts.leader,
        "workers": [
            {"name": each.name, "age_seconds": each.age_seconds, "is_reported_dead": each.is_reported_dead}
            for each in facts.workers
        ],
        "stages": [
            {
                "name": row.name,
                "taken": row.taken,
                "emitted": row.emitted,
                "backlog": row.backlog,
                "partitions": row.partitions,
                "done": row.done,
            }
            for row in stage_rows(None, facts)
        ],
        "dead_letters": facts.dead_letters,
        "first_dead_letters": [
            {"id": letter.id, "operator": letter.operator, "error": letter.error} for letter in letters[:SHOWN_LETTERS]
        ],
    }


def job_line(record: JobRecord) -> str:
    """One line of `celeriac list`."""
    return f"{record.job}  {record.state.value}  {record.plan.pipeline}  {_instant(record.made_at_ms)}"


def job_json(record: JobRecord) -> dict[str, Any]:
    """One job of `celeriac list --json`."""
    return {
        "job": record.job,
        "pipeline": record.plan.pipeline,
        "state": record.state.value,
        "reason": record.reason,
        "made_at_ms": record.made_at_ms,
        "changed_at_ms": record.changed_at_ms,
    }


def _published(published: Published) -> str:
    files, records = _count(published.files, "file"), _count(published.records, "record")
    return f"{published.path} ({files}, {records})"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _workers(facts: JobFacts) -> str:
    return ", ".join(
        f"{each.name} ({'dead' if each.is_reported_dead else f'heard {each.age_seconds:.1f} s ago'})"
        for each in facts.workers
    )


def _instant(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:200]
