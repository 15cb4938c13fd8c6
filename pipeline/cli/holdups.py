"""Notices what holds a running job up from outside: a full output and the reader it waits for, a pool without a worker.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pipeline.cli.reports import full_output
from pipeline.facts import JobFacts
from pipeline.nodes import unserved_stages

PATIENCE_MS: Final = 5_000
"""A reader that reads at all moves within this time; a full output alone is ordinary backpressure."""


class Holdups:
    """Remembers since when each output is stopped at the same place. `own_pools`: the run has workers for them."""

    def __init__(self, own_pools: Iterable[str] = ()) -> None:
        self._own_pools = frozenset(own_pools)
        self._stopped: dict[str, tuple[str, int, int]] = {}
        self._told: set[str] = set()
        self._unserved: dict[str, int] = {}
        self._told_stages: set[str] = set()

    def look(self, facts: JobFacts) -> list[str]:
        """What there is to say at this look: what has stood still for long, once until it moves."""
        return self._look_at_stages(facts) + self._look_at_outputs(facts)

    def _look_at_stages(self, facts: JobFacts) -> list[str]:
        # Workers of ours that nobody has heard of yet are being started: to start another one helps nobody.
        starting = self._own_pools.difference(worker.pool for worker in facts.workers)
        awaited = {stage.name for stage in facts.record.plan.stages if stage.pool in starting}
        found = {stage: why for stage, why in unserved_stages(facts).items() if stage not in awaited}
        self._unserved = {stage: self._unserved.get(stage, facts.now_ms) for stage in found}
        late = {stage for stage, since_ms in self._unserved.items() if facts.now_ms - since_ms >= PATIENCE_MS}
        news, self._told_stages = late - self._told_stages, late
        return [f"stage {stage} {why}" for stage, why in found.items() if stage in news]

    def _look_at_outputs(self, facts: JobFacts) -> list[str]:
        said = []
        for output in facts.outputs:
            slowest = output.slowest
            if not output.waiting or slowest is None:
                self._stopped.pop(output.name, None)
                self._told.discard(output.name)
                continue
            name, number, since_ms = self._stopped.get(output.name, ("", 0, 0))
            if (name, number) != (slowest.name, slowest.next_number):
                self._stopped[output.name] = (slowest.name, slowest.next_number, facts.now_ms)
                self._told.discard(output.name)
            elif facts.now_ms - since_ms >= PATIENCE_MS and output.name not in self._told:
                self._told.add(output.name)
                said.append(f"the output {output.name} is full: {full_output(facts.record.job, output)}")
        return said
