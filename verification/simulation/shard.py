"""`python -m verification.simulation.shard`: one process's share of the seeds; a JSON line for each piece.

Standard input: the work as JSON. It is no command for users: `celeriac verify --seeds` starts it.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from typing import Final

import msgspec

from pipeline.errors import CeleriacError
from verification.simulation.seeds import Outcome, simulate

_PIECE_SEEDS: Final = 20
_TOLD_LINES: Final = 40
_NOT_STARTED: Final = 3
_TERMINATED: Final = 143


class SeedWork(msgspec.Struct, frozen=True):
    """Seeds first, first + step, ... , below `end`."""

    first: int
    end: int
    step: int


class Fallen(msgspec.Struct, frozen=True):
    """A seed that did not end as it must, and what befell whom."""

    seed: int
    plot: str
    what: str
    trace: tuple[str, ...]


class SeedPiece(msgspec.Struct, frozen=True):
    """What came out of some seeds. `plots`: of which job -> how many; seconds of virtual time, faults and commands."""

    plots: dict[str, int]
    seconds: float = 0.0
    faults: int = 0
    commands: int = 0
    fallen: tuple[Fallen, ...] = ()


def pieces(work: SeedWork) -> Iterator[SeedPiece]:
    """Runs this share."""
    seeds = range(work.first, work.end, work.step)
    for at in range(0, len(seeds), _PIECE_SEEDS):
        yield _summed([simulate(seed) for seed in seeds[at : at + _PIECE_SEEDS]])


def _summed(outcomes: list[Outcome]) -> SeedPiece:
    plots: dict[str, int] = {}
    for outcome in outcomes:
        plots[outcome.plot] = plots.get(outcome.plot, 0) + 1
    return SeedPiece(
        plots,
        sum(outcome.seconds for outcome in outcomes),
        sum(outcome.trace.faults for outcome in outcomes),
        sum(outcome.trace.commands for outcome in outcomes),
        tuple(
            Fallen(outcome.seed, outcome.plot, outcome.failure, tuple(outcome.trace.told(_TOLD_LINES)))
            for outcome in outcomes
            if outcome.failure
        ),
    )


def main() -> int:
    logging.disable(logging.CRITICAL)  # faults are the point: what they log says nothing
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's: it ends this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    work = msgspec.json.decode(sys.stdin.buffer.read(), type=SeedWork)
    try:
        for piece in pieces(work):
            sys.stdout.buffer.write(msgspec.json.encode(piece) + b"\n")
            sys.stdout.buffer.flush()
    except CeleriacError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return _NOT_STARTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
