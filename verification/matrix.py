"""Runs every scenario broken off at every point, compares each end with the run without a fault, and counts."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.store.connection import connect
from verification.points import Course, Life, Variant, teach_all, watched_client
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

    def baseline(self, scenario: Scenario) -> tuple[dict[str, Any], Course]:
        """What can be seen at the end of a run without a fault, and its course. Raises Stalled."""
        return self.watch(scenario, {})

    def watch(self, scenario: Scenario, plan: Mapping[int, Variant]) -> tuple[dict[str, Any], Course]:
        """What can be seen at the end of a run with these faults, and its course. Raises Stalled."""
        with self._world(scenario, plan) as world:
            world.points.gauge = self._changes
            return world.run(), world.points.course

    def _changes(self) -> int:
        """How much was ever changed on the server."""
        return int(self._client.info("persistence")["rdb_changes_since_last_save"])

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

    def try_scripts(self, scenario: Scenario, points: Container[int] | None = None) -> ScriptTally:
        """Every failure inside every script that a run without a fault calls; or inside those at some points.

        Raises Stalled.
        """
        tally = ScriptTally()
        trial = Trial(self._url, tally)
        try:
            with self._world(scenario, {}, lambda url, life: _tried(url, life, trial, points)) as world:
                world.run()
        finally:
            trial.close()
        return tally

    @contextmanager
    def _world(self, scenario: Scenario, plan: Mapping[int, Variant], *store: Any) -> Iterator[World]:
        with tempfile.TemporaryDirectory(prefix="celeriac-verify-") as folder:
            yield World(self._url, self._client, Path(folder), scenario, plan, *store)


def _tried(url: str, life: Life, trial: Trial, points: Container[int] | None) -> TriedScripts:
    def is_wanted() -> bool:
        return points is None or len(life.points.sent) + 1 in points

    return TriedScripts(watched_client(url, life), life.points, trial, is_wanted)


def plans_of(scenario: Scenario, course: Course) -> list[dict[int, Variant]]:
    """Runs with one fault."""
    if scenario.begins_behind:
        return course.crashes(course.sent.index(scenario.begins_behind) + 2)
    return single_plans(course, is_inside=scenario.is_long)


def single_plans(course: Course, *, is_inside: bool = False) -> list[dict[int, Variant]]:
    """One fault: each that makes a run of its own, at each point."""
    numbers = range(1, len(course.sent) + 1)
    return [{number: variant} for number in numbers for variant in course.variants(number, is_inside=is_inside)]


def sampled_plans(course: Course) -> list[dict[int, Variant]]:
    """Of these one for each command of each actor where it comes first, and one where it changes something last."""
    found, used = [], Counter[Variant]()
    for number in course.ends():
        rarest = min(course.variants(number), key=lambda variant: used[variant])
        used[rarest] += 1
        found.append({number: rarest})
    return found


def pair_plans(first: Mapping[int, Variant], course: Course) -> list[dict[int, Variant]]:
    """Two crashes: the first one, and each that may come after it; `course` is the run with the first one alone.

    Scenarios with pairs do nothing outside Redis.
    """
    return [{**first, **second} for second in course.crashes(max(first) + 1)]


def difference(expected: Mapping[str, Any], seen: Mapping[str, Any]) -> str:
    parts = []
    for name in sorted({*expected, *seen}):
        if expected.get(name) != seen.get(name):
            parts.append(f"{name}: {_short(expected.get(name))} became {_short(seen.get(name))}")
    return "; ".join(parts)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _TOLD_CHARACTERS else text[:_TOLD_CHARACTERS] + "…"
