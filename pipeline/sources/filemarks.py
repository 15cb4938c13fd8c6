"""How far a file that grows was read, and how it is known again: by marks of its first bytes and of those just before.

What was read of a growing file never changes. Where the marks do not fit any more, the content is another one.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any, Final

from pipeline.sources.endless import foreign_position

HEAD_BYTES: Final = 1024
TAIL_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class FileMark:
    """The offset to read on from. `head`: the first bytes, `tail`: those before the offset; neither is all of it."""

    offset: int = 0
    head: bytes = b""
    tail: bytes = b""

    def after(self, data: bytes) -> FileMark:
        """The mark behind these bytes, which follow the offset."""
        head = self.head + data[: max(0, HEAD_BYTES - len(self.head))]
        return FileMark(self.offset + len(data), head, (self.tail + data[-TAIL_BYTES:])[-TAIL_BYTES:])

    def position(self) -> list[Any]:
        """What is stored: offset, length of the beginning, digests of both."""
        return [self.offset, len(self.head), _digest(self.head) + _digest(self.tail)]

    def fits(self, descriptor: int) -> bool:
        """Whether the file still holds these bytes at these places. Raises OSError."""
        return (
            os.pread(descriptor, len(self.head), 0) == self.head
            and os.pread(descriptor, len(self.tail), self.offset - len(self.tail)) == self.tail
        )


def mark_at(descriptor: int, offset: int) -> FileMark:
    """The mark of a file as it is now. Raises OSError."""
    tail = min(TAIL_BYTES, offset)
    head = os.pread(descriptor, min(HEAD_BYTES, offset), 0)
    return FileMark(offset, head, os.pread(descriptor, tail, offset - tail))


def find_mark(descriptor: int, position: Any) -> FileMark | None:
    """The mark that was stored as this position, or None when the file does not hold what was read.

    Raises OSError; InputError for a position that is none of ours.
    """
    if position is None:
        return FileMark()
    match position:
        case [int() as offset, int(), str()] if 0 <= offset < 1 << 62:
            pass
        case _:
            raise foreign_position(position)
    if os.fstat(descriptor).st_size < offset:
        return None
    mark = mark_at(descriptor, offset)
    return mark if mark.position() == list(position) else None


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
