"""`python -m verification.shard`: one process's share of the runs, on a Redis of its own; a JSON line for each piece.

Standard input: the work as JSON. It is no command for users: `celeriac verify` starts it.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import CeleriacError
from verification.matrix import Bench, Failure, pair_plans, single_plans
from verification.points import Variant
from verification.scenarios import SCENARIOS
from verification.world import Scenario, Stalled

_PIECE_RUNS: Final = 25
_QUICK_PAIRS: Final = 40
_SHOWN_FAILURES: Final = 20
_NOT_STARTED: Final = 3
_TERMINATED: Final = 143


class Work(msgspec.Struct, frozen=True):
    """Share `index` of `shares`; `scenarios` by name. Quick: one variant of each point, and few pairs."""

    index: int
    shares: int
    scenarios: tuple[str, ...]
    is_quick: bool


class Piece(msgspec.Struct, frozen=True):
    """What came out of some runs. `runs`: what befell them -> how many; `failures` in words, the first ones."""

    scenario: str
    points: int
    runs: dict[str, int]
    failures: tuple[str, ...] = ()
    failed: int = 0


def pieces(work: Work, bench: Bench) -> Iterator[Piece]:
    """Runs this share, scenario by scenario."""
    for number, scenario in enumerate(scenario for scenario in SCENARIOS if scenario.name in work.scenarios):
        try:
            expected, sent = bench.baseline(scenario)
            if number % work.shares == work.index:
                yield _scripts(bench, scenario, len(sent))
        except Stalled as error:
            yield Piece(scenario.name, 0, {"no fault": 1}, (f"{scenario.name}: without any fault: {error}",), 1)
            continue
        plans = islice(_plans(work, scenario, sent), work.index, None, work.shares)
        while piece := list(islice(plans, _PIECE_RUNS)):
            yield _judged(bench, scenario, len(sent), piece, expected)


def _plans(work: Work, scenario: Scenario, sent: Sequence[str]) -> Iterator[Mapping[int, Variant]]:
    variants = tuple(Variant)
    if work.is_quick:
        for number in range(1, len(sent) + 1):
            yield {number: variants[number % len(variants)]}
        if scenario.has_pairs:
            pairs = list(pair_plans(sent))
            yield from pairs[:: max(1, len(pairs) // _QUICK_PAIRS)]
        return
    yield from single_plans(len(sent))
    if scenario.has_pairs:
        yield from pair_plans(sent)


def _judged(
    bench: Bench,
    scenario: Scenario,
    points: int,
    plans: Sequence[Mapping[int, Variant]],
    expected: Mapping[str, object],
) -> Piece:
    runs: dict[str, int] = {}
    failures: list[Failure] = []
    for plan in plans:
        befell = "pair of crashes" if len(plan) > 1 else next(iter(plan.values())).value
        runs[befell] = runs.get(befell, 0) + 1
        failure = bench.judge(scenario, plan, expected)
        if failure is not None:
            failures.append(failure)
    told = tuple(str(failure) for failure in failures[:_SHOWN_FAILURES])
    return Piece(scenario.name, points, runs, told, len(failures))


def _scripts(bench: Bench, scenario: Scenario, points: int) -> Piece:
    tally = bench.try_scripts(scenario)
    runs = {"error inside a script": tally.errors, "foreign key in a script": tally.foreign}
    found = sorted(set(tally.failures))
    return Piece(scenario.name, points, runs, tuple(f"{scenario.name}: {text}" for text in found), len(found))


def main() -> int:
    logging.disable(logging.CRITICAL)  # faults are the point: what they log says nothing
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's: it ends this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    work = msgspec.json.decode(sys.stdin.buffer.read(), type=Work)
    try:
        # Processes die here, not the server: what it loses when it is killed is tried elsewhere.
        with EmbeddedRedis.start(fsync="no") as server:
            bench = Bench(server.url)
            for piece in pieces(work, bench):
                sys.stdout.buffer.write(msgspec.json.encode(piece) + b"\n")
                sys.stdout.buffer.flush()
            bench.close()
    except CeleriacError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return _NOT_STARTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
