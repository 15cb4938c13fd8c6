"""Records of a batch that a step does not run: those that could not be read, and those whose key is held."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.records import Batch


@dataclass(frozen=True, slots=True)
class Apart:
    """`behind`: for each held key the places of its records in the batch."""

    faults: frozenset[int] = frozenset()
    behind: dict[Any, list[int]] = field(default_factory=dict)

    def others(self, batch: Batch) -> Batch:
        """The records of such a batch that are run."""
        return picked(batch, self.places(batch)) if self.faults or self.behind else batch

    def places(self, batch: Batch) -> list[int]:
        """Where they stand."""
        left_out = self.faults.union(*self.behind.values())
        return [place for place in range(len(batch)) if place not in left_out]

    def held(self, batch: Batch, taken: int) -> dict[Any, Batch]:
        """For each held key its records among the first `taken`, where there are any."""
        found = {key: [place for place in places if place < taken] for key, places in self.behind.items()}
        return {key: picked(batch, places) for key, places in found.items() if places}


def apart_of(batch: Batch, held: Collection[Any]) -> Apart:
    """What of the batch is not run, where these keys are held."""
    behind: dict[Any, list[int]] = {}
    if held and batch.keys is not None and not set(batch.keys).isdisjoint(held):
        for place, key in enumerate(batch.keys):
            if key in held:
                behind.setdefault(key, []).append(place)
    return Apart(frozenset(batch.faults), behind)


def picked(batch: Batch, places: Sequence[int]) -> Batch:
    """The records at these places, without faults."""
    return Batch(
        [batch.values[i] for i in places],
        None if batch.keys is None else [batch.keys[i] for i in places],
        None if batch.times is None else [batch.times[i] for i in places],
        None if batch.ids is None else [batch.ids[i] for i in places],
    )
