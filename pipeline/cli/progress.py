"""Two moments of a job as rows of progress, and rows as text. Pure: reads no store and no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from pipeline.facts import JobFacts, PartitionFacts
from pipeline.plan import StagePlan

NARROW: Final = 60
"""Columns below which a terminal has no room for all numbers."""

_MINUTE_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage. `rate` is in records taken per second; `done` of its `partitions` have nothing left to do."""

    name: str
    taken: int
    emitted: int
    rate: float
    backlog: int
    done: int
    partitions: int


def stage_rows(before: JobFacts | None, after: JobFacts) -> tuple[StageRow, ...]:
    """A row for each stage at `after`; rates are those since `before`, 0 where there is none."""
    return tuple(_row(stage, before, after) for stage in after.record.plan.stages)


def records_read(facts: JobFacts) -> int:
    """Records that entered the job: what its entry stages have taken."""
    entries = {stage.index for stage in facts.record.plan.stages if not stage.keyed}
    return sum(partition.taken for partition in facts.partitions if partition.stage in entries)


def plain_line(row: StageRow) -> str:
    """One row for a log or a pipe."""
    return (
        f"{row.name}: in {row.taken:,}, out {row.emitted:,}, {row.rate:,.0f}/s, "
        f"backlog {row.backlog:,}, done {row.done}/{row.partitions}"
    )


def progress_table(title: str, rows: Sequence[StageRow], width: int) -> Table:
    """The rows for a terminal of so many columns. Long names are cut; a narrow terminal shows fewer numbers."""
    columns = _columns(rows)
    if width < NARROW:
        columns = [columns[number] for number in (0, 3, 4)]
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("stage", min_width=5)
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        # The column may be wrapped and its cells may not: only so rich takes room from the names alone.
        name = Text(row.name, no_wrap=True, overflow="ellipsis")
        table.add_row(name, *(cells[number] for _, cells in columns))
    return table


def duration(seconds: float) -> str:
    """As a person says it: `0.8 s`, `12 s`, `3 min 05 s`, `2 h 00 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), _MINUTE_SECONDS)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, _MINUTE_SECONDS)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _columns(rows: Sequence[StageRow]) -> list[tuple[str, list[str]]]:
    return [
        ("in", [f"{row.taken:,}" for row in rows]),
        ("out", [f"{row.emitted:,}" for row in rows]),
        ("per s", [f"{row.rate:,.0f}" for row in rows]),
        ("backlog", [f"{row.backlog:,}" for row in rows]),
        ("done", [f"{row.done}/{row.partitions}" for row in rows]),
    ]


def _row(stage: StagePlan, before: JobFacts | None, after: JobFacts) -> StageRow:
    now = _of_stage(after, stage)
    taken = sum(partition.taken for partition in now)
    rate = 0.0
    if before is not None and after.now_ms > before.now_ms:
        earlier = sum(partition.taken for partition in _of_stage(before, stage))
        rate = max(0, taken - earlier) * 1000 / (after.now_ms - before.now_ms)
    return StageRow(
        name=stage.name,
        taken=taken,
        emitted=sum(partition.emitted for partition in now),
        rate=rate,
        backlog=sum(partition.backlog for partition in now),
        done=sum(1 for partition in now if partition.done and partition.partition < stage.serving),
        partitions=stage.serving,
    )


def _of_stage(facts: JobFacts, stage: StagePlan) -> list[PartitionFacts]:
    return [partition for partition in facts.partitions if partition.stage == stage.index]
