"""Some keys of a running job in bulk: each call goes on from what the one before has come to."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pyspark.sql import SparkSession

from pipeline.graph import Graph
from pipeline.recomputing.computed import Computed, Given, count_between
from pipeline.spark.bulk.beginning import RunSeed
from pipeline.spark.bulk.engine import BulkOptions, BulkRun
from pipeline.spark.bulk.here import count_states
from pipeline.spark.bulk.history import History
from pipeline.spark.bulk.letters import Letter
from pipeline.spark.bulk.output import Selected

HERE_RECORDS: Final = 20_000
HERE_STATES: Final = 200_000
"""So little, with so much state before it, is computed in this process: Spark's tasks cost more than that."""


@dataclass
class SparkRecompute:
    """A `pipeline.recomputing.computed.Recompute`, as a context that leaves nothing behind. Belongs to one thread.

    session: opens one, or gives that again; not called where nothing needs Spark. options: with a number of partitions,
    and with `keeps_state`. is_remote: Spark runs on other hosts.
    """

    target: str
    graph: Graph
    session: Callable[[], SparkSession]
    selected: Selected
    options: BulkOptions
    is_remote: bool = False
    _given: Given = field(default_factory=dict)
    _letters: list[Letter] = field(default_factory=list)
    _held: int = 0
    _folders: dict[int, Path] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def __call__(self, given: Given) -> Computed:
        """Raises InputError, PipelineError, RecordFailed, EnvironmentFault."""
        started = time.monotonic()
        seed = RunSeed(tuple((stage, str(folder)) for stage, folder in self._folders.items())) if self._given else None
        portions = History(self.graph).portions(given, self._given)
        options = replace(self.options, seed=seed, portions=portions, selected=self.selected)
        records = count_between(self._given, given)
        with ExitStack() as stack:
            run = stack.enter_context(BulkRun(self.target, options, self.is_remote))
            run.prepare()
            if records <= HERE_RECORDS and count_states(self._folders) <= HERE_STATES:
                run.compute_here()
            else:
                run.compute(self.session())
            before, self._stack = self._stack, stack.pop_all()
        before.close()  # only now: its state was the seed
        self._folders = run.folders
        self._given = given
        self._letters += run.facts.letters
        self._held += len(run.facts.held)
        values = {
            (operator, key): state for stage, operator, key, state in run.states() if stage == self.selected.stage
        }
        timers = tuple(timer for stage, timer in run.timers() if stage == self.selected.stage)
        seconds = time.monotonic() - started
        return Computed(values, timers, tuple(self._letters), self._held, records, seconds)
