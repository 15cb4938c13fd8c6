"""`celeriac verify --seeds N --seed S`: shares seeds out, and tells what became of them."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import Progress

from pipeline.errors import CeleriacError
from verification.shares import Shares
from verification.simulation.seeds import simulate
from verification.simulation.shard import Fallen, SeedPiece, SeedWork

PASSED, FAILED, NOT_STARTED, INTERRUPTED = 0, 1, 3, 130

_SHOWN_FAILURES: Final = 5
_TOLD_SECONDS: Final = 15.0


@dataclass(slots=True)
class Sum:
    """What became of all seeds."""

    plots: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    faults: int = 0
    commands: int = 0
    fallen: list[Fallen] = field(default_factory=list)

    def add(self, piece: SeedPiece) -> None:
        self.plots.update(piece.plots)
        self.seconds += piece.seconds
        self.faults += piece.faults
        self.commands += piece.commands
        self.fallen += piece.fallen


def simulated(seeds: int | None, seed: int | None, processes: int, *, as_json: bool) -> int:
    """The exit code. One seed alone is told with all that it did."""
    if seeds is None:
        return _told(seed or 0, as_json=as_json)
    first, started = 1 if seed is None else seed, time.monotonic()
    console = Console(stderr=as_json, width=None if sys.stdout.isatty() else 160)
    try:
        sums = _run(first, seeds, processes, console)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ChildProcessError as error:
        print(f"error: {error}; what it said stands above", file=sys.stderr)
        return NOT_STARTED
    if as_json:
        print(json.dumps(msgspec.to_builtins({**_numbers(sums), "failures": sums.fallen}), indent=2))
    else:
        _print(sums, console, time.monotonic() - started)
    return FAILED if sums.fallen else PASSED


def _run(first: int, seeds: int, processes: int, console: Console) -> Sum:
    sums, told_at = Sum(), time.monotonic()
    works = [SeedWork(first + index, first + seeds, processes) for index in range(min(processes, seeds))]
    shares = Shares("verification.simulation.shard", works, SeedPiece)
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("seeds", total=seeds)
            while (found := shares.pieces()) is not None:
                for piece in found:
                    sums.add(piece)
                progress.update(task, completed=sums.plots.total())
                if not console.is_terminal and time.monotonic() - told_at > _TOLD_SECONDS:
                    told_at = time.monotonic()
                    print(f"{sums.plots.total():,} seeds, {len(sums.fallen):,} not equal", file=sys.stderr)
    finally:
        shares.stop()
    return sums


def _numbers(sums: Sum) -> dict[str, object]:
    return {
        "seeds": sums.plots.total(),
        "jobs": dict(sums.plots),
        "virtual_seconds": round(sums.seconds),
        "faults": sums.faults,
        "commands": sums.commands,
    }


def _print(sums: Sum, console: Console, seconds: float) -> None:
    for fallen in sums.fallen[:_SHOWN_FAILURES]:
        console.print(f"NOT EQUAL  seed {fallen.seed}, {fallen.plot}: {fallen.what}", markup=False, soft_wrap=True)
        for line in fallen.trace:
            console.print(f"  {line}", markup=False, soft_wrap=True, highlight=False)
        console.print(f"again, with everything: celeriac verify --seed {fallen.seed}", markup=False)
    others = [str(fallen.seed) for fallen in sums.fallen[_SHOWN_FAILURES:]]
    if others:
        console.print(f"NOT EQUAL  also the seeds {', '.join(others)}", markup=False, soft_wrap=True)
    verdict = "every job ended as it must" if not sums.fallen else f"{len(sums.fallen):,} did NOT end as they must"
    console.print(
        f"{sums.plots.total():,} seeds with {sums.faults:,} faults in {sums.commands:,} commands and "
        f"{sums.seconds / 3600:,.1f} hours of virtual time, in {seconds:.0f} s: {verdict}"
    )


def _told(seed: int, *, as_json: bool) -> int:
    logging.disable(logging.CRITICAL)  # faults are the point: what they log says nothing
    try:
        outcome = simulate(seed)
    except CeleriacError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return NOT_STARTED
    if as_json:
        told = {"seed": seed, "job": outcome.plot, "failure": outcome.failure, "trace": outcome.trace.lines()}
        print(json.dumps(told, indent=2))
    else:
        print(f"seed {seed}: {outcome.plot}")
        print("\n".join(outcome.trace.lines()))
        print(f"NOT EQUAL  {outcome.failure}" if outcome.failure else "it ended as it must")
    return FAILED if outcome.failure else PASSED
