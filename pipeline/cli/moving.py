"""Moves of partitions as text. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from pipeline.facts import Moved
from pipeline.wording import counted


def moves_line(found: Sequence[Moved]) -> str:
    """How many moves are kept, and for how long partitions stood still."""
    forced = sum(moved.how == "forced" for moved in found)
    pauses = [moved.pause_ms for moved in found]
    shown = f"median {median(pauses):g} ms, longest {max(pauses)} ms"
    return f"{counted(len(found), 'move')}, {forced} of them forced; pauses: {shown}"


def moves_cells(found: Sequence[Moved]) -> list[tuple[str, ...]]:
    """The rows of the table of moves, the first one its heads."""
    rows: list[tuple[str, ...]] = [("at", "partition", "from", "to", "pause", "how", "why")]
    for moved in found:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moved.at_ms / 1000))
        pause = f"{moved.pause_ms} ms"
        rows.append((when, moved.partition, moved.before, moved.owner, pause, moved.how, moved.why))
    return rows


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of cells as lines, the first row their heads."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
