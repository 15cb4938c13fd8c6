"""What one worker knows to be committed, so that it notices when Redis has lost it. Shared by two threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TypeAlias

from pipeline.losses import is_ahead, partition_line
from pipeline.positions import Position

Place: TypeAlias = tuple[int, int]


class CommitsSeen:
    """The last commit of each partition that this worker has made, by the run of the server that had it.

    `run` is that of the job (its making and generation): what was committed in another one means nothing.
    """

    def __init__(self, worker: str) -> None:
        self._who = f"worker {worker} had committed"
        self._lock = threading.Lock()  # the slices write, the pulse compares
        self._run = ""
        self._of: dict[str, dict[Place, Position]] = {}

    @property
    def run(self) -> str:
        return self._run

    def begin(self, run: str) -> None:
        """What follows belongs to this run of the job."""
        if run != self._run:
            with self._lock:
                self._run, self._of = run, {}

    def note(self, place: Place, position: Position, server: str) -> None:
        """A commit was applied on this run of the server."""
        with self._lock:
            self._of.setdefault(server, {})[place] = position

    def before(self, server: str) -> dict[Place, Position]:
        """The furthest commits that were made on other runs of the server than this one."""
        found: dict[Place, Position] = {}
        with self._lock:
            for known, positions in self._of.items():
                for place, position in positions.items() if known != server else ():
                    if place not in found or is_ahead(position, found[place]):
                        found[place] = position
        return found

    def compared(self, server: str, remembered: Mapping[Place, Position], stood: Mapping[Place, Position]) -> list[str]:
        """What is missing of `remembered` where partitions `stood` when the server began, in lines.

        If nothing is, it belongs to this run of the server from now on.
        """
        lines = [
            partition_line(place, self._who, position, stood[place])
            for place, position in sorted(remembered.items())
            if place in stood and is_ahead(position, stood[place])
        ]
        if not lines:
            with self._lock:
                own = self._of.get(server, {})
                self._of = {server: {**remembered, **own}}
        return lines

    def missing(self, place: Place, found: Position) -> list[str]:
        """The line for a partition whose commit is not where it was seen, or nothing."""
        with self._lock:
            known = [positions[place] for positions in self._of.values() if place in positions]
        behind = [position for position in known if is_ahead(position, found)]
        return [partition_line(place, self._who, position, found) for position in behind[:1]]
