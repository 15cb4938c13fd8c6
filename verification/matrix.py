"""Runs every scenario broken off at every point, compares each end with the run without a fault, and counts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from pipeline.store.connection import connect
from verification.points import SCRIPTS, Variant, teach_all
from verification.scriptfaults import ScriptTally, Trial, TriedScripts
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


class Bench:
    """Runs scenarios on one server that belongs to it alone: everything in it is deleted again and again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = connect(url)
        teach_all(self._client)

    def close(self) -> None:
        self._client.close()

    def baseline(self, scenario: Scenario) -> tuple[dict[str, Any], list[str]]:
        """What can be seen at the end of a run without a fault, and its points. Raises Stalled."""
        with self._world(scenario, {}) as world:
            return world.run(), world.points.sent

    def judge(self, scenario: Scenario, plan: Mapping[int, Variant], expected: Mapping[str, Any]) -> Failure | None:
        """Runs it with these faults. None: it ended as without them."""
        with self._world(scenario, plan) as world:
            try:
                seen = world.run()
            except Stalled as error:
                return Failure(scenario.name, plan, world.points.sent, str(error))
        if seen == expected:
            return None
        return Failure(scenario.name, plan, world.points.sent, difference(expected, seen))

    def try_scripts(self, scenario: Scenario) -> ScriptTally:
        """Every failure inside every script that a run without a fault calls. Raises Stalled."""
        tally = ScriptTally()
        trial = Trial(self._url, tally)
        try:
            with self._world(scenario, {}, lambda url, _: TriedScripts(connect(url), trial)) as world:
                world.run()
        finally:
            trial.close()
        return tally

    @contextmanager
    def _world(self, scenario: Scenario, plan: Mapping[int, Variant], *store: Any) -> Iterator[World]:
        with tempfile.TemporaryDirectory(prefix="celeriac-verify-") as folder:
            yield World(self._url, self._client, Path(folder), scenario, plan, *store)


def single_plans(points: int, variants: Iterable[Variant] = tuple(Variant)) -> Iterator[dict[int, Variant]]:
    """One fault, at each point."""
    for number in range(1, points + 1):
        for variant in variants:
            yield {number: variant}


def pair_plans(sent: Sequence[str]) -> Iterator[dict[int, Variant]]:
    """Two crashes: all pairs of points at which a script of ours is run.

    Whoever dies around a command that only reads dies as if it had around its last script, and a ticket may be lost
    anyway. A death after the reply is the death before the next command. So these are all different pairs. The later
    number counts commands of the run in which the first crash has happened.
    """
    own = [number for number, command in enumerate(sent, 1) if command.rpartition(": ")[2] in SCRIPTS]
    for one, other in combinations(own, 2):
        for first in (Variant.BEFORE, Variant.APPLIED):
            for second in (Variant.BEFORE, Variant.APPLIED):
                yield {one: first, other: second}


def difference(expected: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
    parts = []
    for name in sorted({*expected, *seen}):
        if expected.get(name) != seen.get(name):
            parts.append(f"{name}: {_short(expected.get(name))} became {_short(seen.get(name))}")
    return "; ".join(parts)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _TOLD_CHARACTERS else text[:_TOLD_CHARACTERS] + "…"
