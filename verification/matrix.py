"""Runs every scenario broken off at every point, compares each end with the run without a fault, and counts."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from pipeline.errors import CeleriacError
from verification.points import Variant
from verification.world import Scenario, Stalled, World

_TOLD_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that did not end as it must; `plan` repeats it."""

    scenario: str
    plan: Mapping[int, Variant]
    points: Sequence[str]
    what: str

    def __str__(self) -> str:
        where = "; ".join(
            f"point {n} ({self.points[n - 1] if n <= len(self.points) else 'not reached'}) {variant.value}"
            for n, variant in sorted(self.plan.items())
        )
        return f"{self.scenario}: {where or 'no fault'}: {self.what}"


@dataclass(slots=True)
class Tally:
    """What one scenario gave: runs by what befell them, and all that did not end as it must."""

    scenario: str
    points: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.points = max(self.points, other.points)
        self.runs.update(other.runs)
        self.failures += other.failures


class Bench:
    """Runs scenarios on one server that belongs to it alone: everything in it is deleted again and again."""

    def __init__(self, url: str) -> None:
        self._url = url

    def run(self, scenario: Scenario, plan: Mapping[int, Variant]) -> tuple[dict[str, Any], Sequence[str]]:
        """What can be seen at the end, and the points passed. Raises Stalled."""
        with tempfile.TemporaryDirectory(prefix="celeriac-verify-") as folder:
            world = World(self._url, Path(folder), scenario, plan)
            try:
                return world.run(), world.points.sent
            finally:
                world.close()

    def judge(self, scenario: Scenario, plan: Mapping[int, Variant], expected: Mapping[str, Any]) -> Failure | None:
        """Runs it with these faults. None: it ended as without them."""
        with tempfile.TemporaryDirectory(prefix="celeriac-verify-") as folder:
            world = World(self._url, Path(folder), scenario, plan)
            try:
                seen = world.run()
            except (Stalled, CeleriacError) as error:
                return Failure(scenario.name, plan, world.points.sent, str(error))
            finally:
                world.close()
        if seen == expected:
            return None
        return Failure(scenario.name, plan, world.points.sent, _difference(expected, seen))


def single_plans(points: int, variants: Iterable[Variant] = tuple(Variant)) -> Iterator[dict[int, Variant]]:
    """One fault, at each point."""
    for number in range(1, points + 1):
        for variant in variants:
            yield {number: variant}


def pair_plans(sent: Sequence[str]) -> Iterator[dict[int, Variant]]:
    """Two crashes: all pairs of points of the store's own scripts; a ticket may be lost anyway.

    A death after the reply is the death before the next command, so two variants of each point are all there are.
    The later number counts commands of the run in which the first crash has happened.
    """
    own = [number for number, command in enumerate(sent, 1) if not command.endswith(": RPOP")]
    for one, other in combinations(own, 2):
        for first in (Variant.BEFORE, Variant.APPLIED):
            for second in (Variant.BEFORE, Variant.APPLIED):
                yield {one: first, other: second}


def _difference(expected: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
    parts = []
    for name in sorted({*expected, *seen}):
        if expected.get(name) != seen.get(name):
            parts.append(f"{name}: {_short(expected.get(name))} became {_short(seen.get(name))}")
    return "; ".join(parts)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _TOLD_CHARACTERS else text[:_TOLD_CHARACTERS] + "…"
