"""`python -m verification.main`: what `celeriac verify` runs. Shares the runs out, adds them up, prints the matrix."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from verification.exhaustive.command import searched
from verification.points import Variant
from verification.scenarios import SCENARIOS
from verification.shard import Piece, Work
from verification.shares import Shares
from verification.simulation.command import simulated

PASSED, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130

COLUMNS: Final = (
    *((variant.value, variant.value) for variant in Variant),
    ("error inside a script", "error in script"),
    ("foreign key in a script", "foreign key"),
    ("pair of crashes", "pairs"),
)
"""What befalls a run, and how the table calls it."""

_SHOWN_FAILURES: Final = 20
_TOLD_SECONDS: Final = 15.0


@dataclass(slots=True)
class Row:
    """What one scenario gave."""

    scenario: str
    points: int = 0
    different: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def single(self) -> str:
        """How many of all different runs with one fault were run."""
        run = sum(self.runs[variant.value] for variant in Variant)
        return f"{run:,}" if run == self.different else f"{run:,} of {self.different:,}"

    def add(self, piece: Piece) -> None:
        self.points = max(self.points, piece.points)
        self.different = max(self.different, piece.different)
        self.runs.update(piece.runs)
        self.failed += piece.failed
        self.failures += piece.failures


def verify(names: Sequence[str], processes: int, *, is_quick: bool, console: Console) -> list[Row]:
    """Runs all and returns the matrix, a row for each scenario. Raises ChildProcessError."""
    rows = {name: Row(name) for name in names}
    works = [Work(index, processes, tuple(names), is_quick) for index in range(processes)]
    shares = Shares("verification.shard", works, Piece)
    told_at = time.monotonic()
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("runs", total=None)
            while (found := shares.pieces()) is not None:
                for piece in found:
                    rows[piece.scenario].add(piece)
                    done, at = sum(row.runs.total() for row in rows.values()), piece.scenario
                    progress.update(task, completed=done, description=f"{done:,} runs · {at[:40]}")
                if not console.is_terminal and time.monotonic() - told_at > _TOLD_SECONDS:
                    told_at = time.monotonic()
                    failed = sum(row.failed for row in rows.values())
                    print(f"{done:,} runs, {failed:,} not equal; now: {at}", file=sys.stderr)
    finally:
        shares.stop()
    return list(rows.values())


def matrix(rows: Sequence[Row]) -> Table:
    table = Table(title="runs, and how many of them ended as the run without a fault did")
    table.add_column("scenario", overflow="fold")
    table.add_column("points", justify="right")
    table.add_column("one fault", justify="right")
    used = [(name, title) for name, title in COLUMNS if any(row.runs[name] for row in rows)]
    for _, title in used:
        table.add_column(title, justify="right", overflow="fold")
    table.add_column("equal", justify="right")
    for row in rows:
        counts = [f"{row.runs[name]:,}" if row.runs[name] else "" for name, _ in used]
        total = row.runs.total()
        outcome = "all" if total and not row.failed else f"{total - row.failed:,} of {total:,}"
        table.add_row(row.scenario, f"{row.points:,}", row.single, *counts, outcome)
    return table


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="celeriac verify")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--scenario", action="append", default=[])
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options.add_argument("--json", action="store_true")
    options.add_argument("--exhaustive", action="store_true")
    options.add_argument("--seeds", type=int)
    options.add_argument("--seed", type=int)
    return options.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    asked = _arguments(arguments)
    if asked.exhaustive:
        return searched(as_json=asked.json)
    if asked.seeds is not None or asked.seed is not None:
        return simulated(asked.seeds, asked.seed, max(1, asked.processes), as_json=asked.json)
    known = [scenario.name for scenario in SCENARIOS]
    names = [name for name in known if not asked.scenario or any(part in name for part in asked.scenario)]
    if not names:
        print(f"error: no scenario is called {asked.scenario[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return WRONG_USE
    started = time.monotonic()
    # A table that is piped into a file is as wide as it needs to be.
    console = Console(stderr=asked.json, width=None if sys.stdout.isatty() else 160)
    try:
        rows = verify(names, max(1, asked.processes), is_quick=asked.quick, console=console)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ChildProcessError as error:
        print(f"error: {error}; what it said stands above", file=sys.stderr)
        return FAILED
    failed, total = sum(row.failed for row in rows), sum(row.runs.total() for row in rows)
    if asked.json:
        print(
            json.dumps(
                [
                    msgspec.to_builtins(
                        {
                            "scenario": r.scenario,
                            "points": r.points,
                            "different": r.different,
                            "runs": dict(r.runs),
                            "failed": r.failed,
                            "failures": r.failures,
                        }
                    )
                    for r in rows
                ],
                indent=2,
            )
        )
    else:
        console.print(matrix(rows))
        for text in [text for row in rows for text in row.failures][:_SHOWN_FAILURES]:
            console.print(f"NOT EQUAL  {text}", markup=False, soft_wrap=True)
        verdict = "every run ended as it must" if not failed else f"{failed:,} runs did NOT end as they must"
        console.print(f"{total:,} runs in {time.monotonic() - started:.0f} s: {verdict}")
    return FAILED if failed else PASSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
