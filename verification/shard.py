"""`python -m verification.shard`: one process's share of the runs, on a Redis of its own; a JSON line for each piece.

Standard input: the work as JSON. It is no command for users: `celeriac verify` starts it.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import CeleriacError
from pipeline.store.connection import connect
from verification.matrix import Bench, Failure, pair_plans, plans_of, sampled_plans
from verification.points import Course, Variant
from verification.scenarios import SCENARIOS
from verification.world import Scenario, Stalled

_PIECE_RUNS: Final = 25
_QUICK_EACH: Final = 5
_QUICK_FIRSTS: Final = 8
_QUICK_SECONDS: Final = 5
_SHOWN_FAILURES: Final = 20
_NOT_STARTED: Final = 3
_TERMINATED: Final = 143


class Work(msgspec.Struct, frozen=True):
    """Share `index` of `shares`; `scenarios` by name. Quick: a sample."""

    index: int
    shares: int
    scenarios: tuple[str, ...]
    is_quick: bool


class Piece(msgspec.Struct, frozen=True):
    """What came out of some runs. `runs`: what befell them -> how many; `failures` in words, the first ones.

    different: how many runs with one fault the scenario has in all.
    """

    scenario: str
    points: int
    different: int
    runs: dict[str, int]
    failures: tuple[str, ...] = ()
    failed: int = 0


def pieces(work: Work, bench: Bench) -> Iterator[Piece]:
    """Runs this share, scenario by scenario."""
    for number, scenario in enumerate(scenario for scenario in SCENARIOS if scenario.name in work.scenarios):
        try:
            expected, course = bench.baseline(scenario)
            about = Piece(scenario.name, len(course.sent), len(plans_of(scenario, course)), {})
            if number % work.shares == work.index:
                is_sample = work.is_quick or scenario.is_long
                yield _scripts(bench, scenario, about, course.script_ends() if is_sample else None)
        except Stalled as error:
            told = (f"{scenario.name}: without any fault: {error}",)
            yield Piece(scenario.name, 0, 0, {"no fault": 1}, told, 1)
            continue
        plans = iter(_plans(work, bench, scenario, course))
        while some := list(islice(plans, _PIECE_RUNS)):
            yield _judged(bench, scenario, about, some, expected)


def _plans(work: Work, bench: Bench, scenario: Scenario, course: Course) -> Iterator[Mapping[int, Variant]]:
    plans = plans_of(scenario, course)
    if work.is_quick:
        plans = plans[::_QUICK_EACH] if scenario.begins_behind else sampled_plans(course)
    yield from plans[work.index :: work.shares]
    if not scenario.has_pairs:
        return
    firsts = course.crashes()
    if work.is_quick:
        firsts = firsts[:: len(firsts) // _QUICK_FIRSTS]
    for first in firsts[work.index :: work.shares]:
        try:
            _, after = bench.watch(scenario, first)
        except Stalled:
            yield first  # which is then told
            continue
        pairs = pair_plans(first, after)
        yield from pairs[:: max(1, len(pairs) // _QUICK_SECONDS)] if work.is_quick else pairs


def _judged(
    bench: Bench,
    scenario: Scenario,
    about: Piece,
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
    return replace(about, runs=runs, failures=told, failed=len(failures))


def _scripts(bench: Bench, scenario: Scenario, about: Piece, points: Container[int] | None) -> Piece:
    tally = bench.try_scripts(scenario, points)
    runs = {"error inside a script": tally.errors, "foreign key in a script": tally.foreign}
    found = sorted(set(tally.failures))
    told = tuple(f"{scenario.name}: {text}" for text in found)
    return replace(about, runs=runs, failures=told, failed=len(found))


def main() -> int:
    logging.disable(logging.CRITICAL)  # faults are the point: what they log says nothing
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the parent's: it ends this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    work = msgspec.json.decode(sys.stdin.buffer.read(), type=Work)
    try:
        # Processes die here, not the server: what it loses when it is killed is tried elsewhere.
        with EmbeddedRedis.start(fsync="no") as server:
            with connect(server.url) as client:
                client.config_set("appendonly", "no")
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
