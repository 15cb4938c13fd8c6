"""Positions in an inbox. An entry id is `(records before + 1)-(entries since the last record)`: ids count records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """The next to process: entry id and index of the record in it.

    In front of a control entry `record` counts the commits that the entry has caused so far, of timers or held records.
    """

    entry: str
    record: int = 0

    def __str__(self) -> str:
        return f"{self.entry}/{self.record}"

    @property
    def order(self) -> tuple[int, int, int]:
        """Grows with every commit of a partition."""
        first, _, sub = self.entry.partition("-")
        return int(first), int(sub), self.record

    def records_to(self, other: Position) -> int:
        """How many records lie between this position and a later one, where both stand among records."""
        first, _, record = self.order
        other_first, _, other_record = other.order
        return other_first + other_record - first - record

    @classmethod
    def parse(cls, text: str) -> Position:
        """What `str` has made. Raises ValueError."""
        entry, _, record = text.partition("/")
        found = cls(entry, int(record))
        if f"{found.order[0]}-{found.order[1]}/{found.order[2]}" != text:
            raise ValueError(f"{text!r} is no position")
        return found


START = Position("1-0")


@dataclass(frozen=True, slots=True)
class Reach:
    """How far somebody goes: to `stop`, where an entry may begin, and so many records from `start` at most."""

    start: Position
    stop: Position
    records: int

    def is_at(self, position: Position) -> bool:
        """Whether all of it lies behind the position."""
        return position.order >= self.stop.order or self.start.records_to(position) >= self.records

    def most_from(self, position: Position) -> int:
        """How many records may be taken there; 1 in front of a control entry."""
        left = self.records - self.start.records_to(position)
        return max(1, min(left, position.records_to(self.stop)))


def entry_after(entry: str, records: int) -> str:
    """The id that follows an entry of so many records (0 for control)."""
    first, _, sub = entry.partition("-")
    return f"{int(first) + records}-0" if records else f"{first}-{int(sub) + 1}"
