"""Commands as they go to Redis, taken apart again: what the store packs by itself is as visible as all else."""

from __future__ import annotations

from collections.abc import Iterator


def words_of(packed: bytes) -> Iterator[list[bytes]]:
    """The words of each command, as they go to Redis."""
    at = 0
    while at < len(packed):
        count, _, _ = packed[at + 1 : at + 20].partition(b"\r\n")
        at += 3 + len(count)
        words = []
        for _ in range(int(count)):
            size, _, _ = packed[at + 1 : at + 20].partition(b"\r\n")
            start = at + 3 + len(size)
            at = start + int(size) + 2
            words.append(packed[start : at - 2])
        yield words
