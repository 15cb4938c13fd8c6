"""The records of one lane that wait, and the batch of it that is on its way. Locks nothing and sends nothing."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.errors import StoreError
from pipeline.producing.bounds import Bounds
from pipeline.producing.outgoing import Outgoing
from pipeline.records import Batch
from pipeline.store.senders import Lane

_MOST_CHUNKS: Final = 8
"""Full batches that are sent as one when they have piled up: it costs one call of Redis."""


@dataclass(frozen=True, slots=True)
class Packet:
    """A batch under the numbers that it keeps until it is taken."""

    first: int
    batch: Batch
    ids: list[str | None] | None
    size: int


@dataclass(slots=True)
class _Chunk:
    """Records in columns, so that making a batch of them costs nothing for each."""

    first_at: float
    values: list[Any] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    has_ids: bool = False
    bytes: int = 0


class LaneQueue:
    """First in, first out. `accepted` and `taken` count the records handed over, and those that the job has."""

    def __init__(self, lane: Lane, bounds: Bounds) -> None:
        self.lane = lane
        self._last = lane.taken
        """The number of the last record that is counted as taken."""
        self.accepted = 0
        self.taken = 0
        self.urgent = 0
        """Records up to this count are sent without waiting for more."""
        self.packet: Packet | None = None
        self.trouble: StoreError | None = None
        self.failures = 0
        self.retry_at = -math.inf
        self._batch_records = bounds.batch_records
        self._batch_bytes = bounds.batch_bytes
        self._linger_seconds = bounds.linger_seconds
        self._full: deque[_Chunk] = deque()
        self._open: _Chunk | None = None

    def __len__(self) -> int:
        """Records that the job is not known to have."""
        return self.accepted - self.taken

    def add(self, record: Outgoing, clock: Callable[[], float]) -> bool:
        """True if something has become due, or due earlier: a first record waits, or a batch is full."""
        chunk = self._open
        is_news = chunk is None
        if chunk is None:
            chunk = self._open = _Chunk(clock())
        data, _, time_ms, id_, size = record
        chunk.values.append(data)
        chunk.times.append(time_ms)
        chunk.ids.append(id_)
        if id_ is not None:
            chunk.has_ids = True
        chunk.bytes += size
        self.accepted += 1
        if len(chunk.values) >= self._batch_records or chunk.bytes >= self._batch_bytes:
            self._full.append(chunk)
            self._open = None
            is_news = True
        return is_news and self.packet is None

    def due_at(self, is_urgent: bool) -> float:
        """When there is something to send, on the clock of `add`; infinite when there is nothing."""
        if self.packet is not None:
            return self.retry_at
        if self._full:
            return -math.inf
        if self._open is None:
            return math.inf
        if is_urgent or self.urgent > self.taken:
            return -math.inf
        return self._open.first_at + self._linger_seconds

    def pack(self) -> Packet:
        """The packet that is on its way, or a new one of the oldest records, one at least."""
        if self.packet is None:
            if not self._full and self._open is not None:
                self._full.append(self._open)
                self._open = None
            chunks = [self._full.popleft() for _ in range(min(len(self._full), _MOST_CHUNKS))]
            whole = chunks[0]
            for chunk in chunks[1:]:
                whole.values += chunk.values
                whole.times += chunk.times
                whole.ids += chunk.ids
                whole.has_ids = whole.has_ids or chunk.has_ids
                whole.bytes += chunk.bytes
            batch = Batch(whole.values, times=whole.times)
            self.packet = Packet(self.lane.taken + 1, batch, whole.ids if whole.has_ids else None, whole.bytes)
        return self.packet

    def settle(self) -> int:
        """The packet was taken. The bytes that it held."""
        assert self.packet is not None
        size = self.packet.size
        self._note_taken(self.packet.first + len(self.packet.batch) - 1)
        self.packet, self.trouble, self.failures = None, None, 0
        return size

    def put_off(self, trouble: StoreError, until: float) -> None:
        """The packet was not taken, or not all of it, and is to be sent again."""
        self._note_taken(self.lane.taken)
        self.trouble, self.retry_at = trouble, until
        self.failures += 1

    def _note_taken(self, last: int) -> None:
        self.taken += last - self._last
        self._last = last
