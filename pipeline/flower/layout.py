"""Where the stages of a plan stand in its drawing: columns from the sources to the sinks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.plan import Plan


@dataclass(frozen=True, slots=True)
class Cell:
    """The place of one stage. No two stages of a plan share a cell."""

    column: int
    row: int


def cells(plan: Plan) -> tuple[Cell, ...]:
    """A cell for each stage. Every edge runs to a higher column; a row is near the rows of what feeds it."""
    columns: list[int] = []
    for stage in plan.stages:  # upstream stages have lower numbers
        columns.append(1 + max((columns[number] for number in stage.upstream), default=-1))
    rows: dict[int, int] = {}
    for column in range(max(columns, default=-1) + 1):
        members = [number for number, own in enumerate(columns) if own == column]
        members.sort(key=lambda number: (_middle([rows[up] for up in plan.stage(number).upstream]), number))
        rows.update({number: row for row, number in enumerate(members)})
    return tuple(Cell(column, rows[number]) for number, column in enumerate(columns))


def edges(plan: Plan) -> tuple[tuple[int, int], ...]:
    """(from, to) of each exchange, as indices of stages."""
    return tuple((number, stage.index) for stage in plan.stages for number in stage.upstream)


def _middle(rows: list[int]) -> float:
    return sum(rows) / len(rows) if rows else 0.0
