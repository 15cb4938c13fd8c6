"""What the processes of the small model remember. All of it is frozen, so that a state can be kept and compared."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pipeline.positions import START, Position

RECORDS: Final = 3
SUSPICIONS: Final = 1
"""How often the leader takes the partition from a worker that lives."""


class Held(msgspec.Struct, frozen=True):
    """An entry that a worker has read. `values` are the numbers of its records; none for the end of the input."""

    id: str
    values: tuple[int, ...]


class WorkerMemory(msgspec.Struct, frozen=True):
    """`phase`: what it does next. `total`: the cached state; `held`: entries from its position on."""

    life: int = 1
    phase: str = "look"
    token: str = ""
    entry: str = START.entry
    record: int = 0
    table: int = 0
    total: int = 0
    held: tuple[Held, ...] = ()

    @property
    def position(self) -> Position:
        return Position(self.entry, self.record)

    def forgets(self) -> WorkerMemory:
        """All but which life it is."""
        return WorkerMemory(self.life)


class SenderMemory(msgspec.Struct, frozen=True):
    id: int = 0
    epoch: int = 0
    taken: int = 0


class LeaderMemory(msgspec.Struct, frozen=True):
    token: str = ""
    is_adopted: bool = True


class Memory(msgspec.Struct, frozen=True):
    """Of all, and what the search itself keeps beside them.

    run: of the server. faults, suspicions: how many may still come. owner: the token that was given last, and to whom.
    committed: how many records have been committed, by the positions of the commits that were taken.
    """

    sender: SenderMemory = SenderMemory()
    leader: LeaderMemory = LeaderMemory()
    workers: tuple[WorkerMemory, ...] = (WorkerMemory(), WorkerMemory())
    run: int = 1
    faults: int = 1
    suspicions: int = SUSPICIONS
    term: int = 0
    owner: str = ""
    owned_by: tuple[int, int] = (-1, 0)
    committed: int = 0
    is_done: bool = False

    def with_worker(self, number: int, worker: WorkerMemory, **others: Any) -> Memory:
        workers = list(self.workers)
        workers[number] = worker
        return msgspec.structs.replace(self, workers=tuple(workers), **others)
