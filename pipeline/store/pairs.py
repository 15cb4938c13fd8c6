"""Fields and values as Redis reads them, made by column: nothing is done for each. Needs pyarrow, and knows no key."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_MOST_LISTED: Final = 1023


class Pairs:
    """Some pairs, one behind the other, each as two words of a command."""

    def __init__(self, *pieces: Any) -> None:
        """Arrays of bytes, without nulls: each pair is a piece of each of them, names and values as of `framed`."""
        words = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))
        _, ends, self._data = words.buffers()
        self._ends = memoryview(ends).cast("i")[words.offset :]

    def part(self, start: int, stop: int) -> memoryview:
        """The words of the pairs start <= i < stop."""
        return memoryview(self._data)[self._ends[start] : self._ends[stop]]

    def size(self, start: int, stop: int) -> int:
        """Bytes of that part."""
        return self._ends[stop] - self._ends[start]


def framed(words: Any) -> tuple[Any, Any]:
    """Words in two pieces: what stands in front of each, which ends the word before, and the word."""
    lengths = pc.binary_length(words)
    most = pc.max(lengths).as_py() or 0
    if most <= _MOST_LISTED:
        return _listed().take(lengths), words
    return pc.binary_join_element_wise("\r\n$", lengths.cast(pa.string()), "\r\n", "").cast(pa.binary()), words


def front(length: int) -> bytes:
    """What stands in front of a word of so many bytes."""
    return b"\r\n$%d\r\n" % length


@cache
def _listed() -> Any:
    return pa.array(map(front, range(_MOST_LISTED + 1)), pa.binary())
