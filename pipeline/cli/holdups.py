"""Notices what holds a running job up from outside: an output that is full, and the reader it waits for. Pure."""

from __future__ import annotations

from typing import Final

from pipeline.cli.reports import full_output
from pipeline.facts import JobFacts

PATIENCE_MS: Final = 5_000
"""A reader that reads at all moves within this time; a full output alone is ordinary backpressure."""


class Holdups:
    """Remembers since when each output is stopped at the same place."""

    def __init__(self) -> None:
        self._stopped: dict[str, tuple[str, int, int]] = {}
        self._told: set[str] = set()

    def look(self, facts: JobFacts) -> list[str]:
        """What there is to say at this look: an output that has stood still for long, once until it moves."""
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
