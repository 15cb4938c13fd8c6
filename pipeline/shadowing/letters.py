"""Dead letters since the cut: those that only the shadow has are what its version gives up, and the job's does not."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from pipeline.store.jobs import JobStore
from pipeline.store.letters import DeadLetter, LetterStore
from pipeline.store.scripts import Scripts

MOST: Final = 1_000
"""So many of each side are looked at."""

_SHOWN: Final = 5


class NewLetters:
    """To be made when the shadow is whole, and before it works: it has the letters that the job had at the cut."""

    def __init__(self, scripts: Scripts, job: str, shadow: str) -> None:
        self._stores = [LetterStore(scripts, JobStore(scripts).read(each)) for each in (job, shadow)]
        last = deque(self._stores[1].read(), maxlen=1)
        self._after = last[0].id if last else "-"

    def read(self) -> tuple[tuple[int, int], list[str]]:
        """How many the job has, and the shadow; and some that only the shadow has, for people. Raises StoreError."""
        ours, its = (list(islice(store.read(self._after), MOST)) for store in self._stores)
        known = {_identity(letter) for letter in ours}
        fresh = (letter for letter in its if _identity(letter) not in known)
        lines = [f"operator {each.operator}: {each.error}" for each in islice(fresh, _SHOWN)]
        return (len(ours), len(its)), lines


def _identity(letter: DeadLetter) -> tuple[int, str, bytes]:
    return letter.stage, letter.operator, letter.payload
