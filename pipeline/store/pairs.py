"""Fields and values as Redis reads them, made by column: nothing is done for each. Needs pyarrow, and knows no key."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_MOST_LISTED: Final = 1023
_NOTHING: Final = pa.scalar(b"", pa.binary())


class Pairs:
    """Some pairs, one behind the other, each as two words of a command. Arrays of bytes, without nulls."""

    def __init__(self, names: Any, values: Any) -> None:
        words = pc.binary_join_element_wise(_heads(names), names, _heads(values), values, _NOTHING)
        _, ends, self._data = words.buffers()
        self._ends = memoryview(ends).cast("i")[words.offset :]

    def part(self, start: int, stop: int) -> memoryview:
        """The words of the pairs start <= i < stop."""
        return memoryview(self._data)[self._ends[start] : self._ends[stop]]

    def size(self, start: int, stop: int) -> int:
        """Bytes of that part."""
        return self._ends[stop] - self._ends[start]


def _heads(words: Any) -> Any:
    """For each word how its length stands in front of it, behind the end of the word before."""
    lengths = pc.binary_length(words)
    most = pc.max(lengths).as_py() or 0
    if most <= _MOST_LISTED:
        return _listed().take(lengths)
    return pc.binary_join_element_wise("\r\n$", lengths.cast(pa.string()), "\r\n", "").cast(pa.binary())


@cache
def _listed() -> Any:
    return pa.array([b"\r\n$%d\r\n" % length for length in range(_MOST_LISTED + 1)], pa.binary())
