"""A seed of what an earlier run in bulk has told; in a module of its own, since Spark's tasks must import it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.keying import first_table, group_of
from pipeline.plan import StagePlan
from pipeline.records import Timer


@dataclass(frozen=True)
class Kept:
    """A seed: what an earlier run has told."""

    states: tuple[tuple[int, str, Any, Any], ...]
    open: tuple[tuple[int, Timer], ...]

    def state(self, stage: StagePlan, partition: int) -> Iterable[tuple[str, Any, Any]]:
        table = first_table(stage.serving)
        return [
            (operator, key, value)
            for index, operator, key, value in self.states
            if index == stage.index and table[group_of(key)] == partition
        ]

    def timers(self, stage: StagePlan, partition: int) -> Iterable[Timer]:
        table = first_table(stage.serving)
        return [timer for index, timer in self.open if index == stage.index and table[group_of(timer.key)] == partition]
