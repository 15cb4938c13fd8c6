"""Of many ways to break something the test line tries some, and others each time; CELERIAC_TEST_ALL=1 tries them all.

What is sampled is marked so, and a step of .ci/run tries all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final, TypeVar

from tests.e2e.chaos import a_chance

T = TypeVar("T")

_TRIES_ALL: Final = os.environ.get("CELERIAC_TEST_ALL") == "1"
_EVERY: Final = 5


def calls(first: int = 1) -> Iterator[int]:
    """Numbers of calls at which something is to break, without an end: from `first` on, or every fifth of these."""
    if _TRIES_ALL:
        return count(first)
    return count(first + a_chance().randrange(_EVERY), _EVERY)


def some(cases: Sequence[T]) -> Sequence[T]:
    """All of these, or every fifth."""
    return cases if _TRIES_ALL else cases[::_EVERY]
