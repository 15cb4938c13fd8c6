"""The place in a partition's inbox at which the number of its stage's partitions changes, as its owner knows it."""

from __future__ import annotations

from pipeline.plan import StagePlan
from pipeline.positions import Position
from pipeline.store.ownership import Acquired


class Turn:
    """Up to the entry `switch` the partition serves the keys of the table before, from there on those of the plan's.

    What was acquired tells how many have still to give it keys (`gate`). When none has, all that they gave was there.
    """

    def __init__(self, acquired: Acquired, partition: int, stage: StagePlan) -> None:
        self.is_removed = partition >= stage.serving
        self._switch = acquired.switch
        self._before = acquired.before
        self._serving = stage.serving
        self._is_gated = acquired.gate > 0

    def is_gated_at(self, position: Position) -> bool:
        """Whether it may not go on from there, as far as is known."""
        return self._is_gated and position.entry == self._switch

    def partitions_at(self, position: Position) -> int:
        """By how many partitions keys are dealt out at a position that is not behind the switch, or now."""
        return self._before if self._switch and position.entry != self._switch else self._serving

    def move_to(self, end: Position) -> None:
        """A commit up to `end` was applied."""
        if self._switch and Position(self._switch).order < Position(end.entry).order:
            self._switch = ""
