"""After unclean ends at a position records run alone, each says so first, and one that killed too often is given up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pipeline.errors import StoreError
from pipeline.positions import Position
from pipeline.store.ownership import Assigned, Ownership
from stages.failures import TryAgain
from stages.step import Outcome

logger = logging.getLogger(__name__)

SINGLE_RECORDS: Final = 256
"""After two unclean ends at a position so many records run alone; no first step of a new owner is larger."""

_PROVEN_DEATHS: Final = 3
"""With fewer no record was ever seen in hand: the first two unclean ends at a position may have other causes."""

_NO_TRIAL: Final = Position("none")
"""Declared when user code has come back: a worker that dies while it waits for Redis or a full inbox is no death."""


class Trials:
    """Of one owned partition. `deaths`: unclean ends at a position that make its record a dead letter."""

    def __init__(self, ownership: Ownership, row: Assigned, deaths: int) -> None:
        self._ownership = ownership
        self._row = row
        self._most = max(_PROVEN_DEATHS, deaths)
        self._deaths = 0
        self._left = 0

    def remember(self, deaths: int) -> None:
        """So many unclean ends were met at the position that is next."""
        self._deaths = deaths
        self._left = SINGLE_RECORDS if deaths >= 2 else 0

    @property
    def is_on(self) -> bool:
        """Whether the next record, or timer, runs alone."""
        return self._left > 0

    def run(self, position: Position, run: Callable[[], Outcome], give_up: Callable[[str], Outcome]) -> Outcome:
        """What `run` gives, which must be for one record while trials are on; `give_up` where it killed too often.

        Raises what `run` raises; StoreError when the partition has another owner.
        """
        if not self.is_on:
            return run()
        self._left -= 1
        deaths, self._deaths = self._deaths, 0
        if deaths >= self._most:
            logger.error(
                "a record killed its worker %d times: stage=%d partition=%d position=%s",
                deaths,
                self._row.stage,
                self._row.partition,
                position,
            )
            return give_up(f"killed its worker {deaths} times")
        self._declare(position)
        try:
            outcome = run()
        except TryAgain:
            self._declare(_NO_TRIAL)
            raise
        self._declare(_NO_TRIAL)
        return outcome

    def _declare(self, position: Position) -> None:
        if not self._ownership.declare_trial(self._row, position):
            raise StoreError(f"stage={self._row.stage} partition={self._row.partition} has another owner")
