"""Positions in an inbox. An entry id is `(records before + 1)-(entries since the last record)`: ids count records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """The next to process: entry id and index of the record in it.

    In front of a control entry `record` counts the commits of timers that the entry has caused so far.
    """

    entry: str
    record: int = 0

    def __str__(self) -> str:
        return f"{self.entry}/{self.record}"


START = Position("1-0")


def entry_after(entry: str, records: int) -> str:
    """The id that follows an entry of so many records (0 for control)."""
    first, _, sub = entry.partition("-")
    return f"{int(first) + records}-0" if records else f"{first}-{int(sub) + 1}"
