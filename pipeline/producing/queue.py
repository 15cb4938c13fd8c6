"""The records of one lane that wait, and the batch of it that is on its way. Locks nothing and sends nothing."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from pipeline.errors import StoreError
from pipeline.producing.bounds import Bounds
from pipeline.producing.outgoing import Outgoing
from pipeline.records import Batch
from pipeline.store.senders import Lane


@dataclass(frozen=True, slots=True)
class Packet:
    """A batch under the numbers that it keeps until it is taken."""

    first: int
    batch: Batch
    ids: list[str | None] | None
    size: int


class LaneQueue:
    """First in, first out. `accepted` and `taken` count the records handed over, and those that the job has."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.accepted = 0
        self.taken = 0
        self.urgent = 0
        """Records up to this count are sent without waiting for more."""
        self.packet: Packet | None = None
        self.trouble: StoreError | None = None
        self.failures = 0
        self.retry_at = -math.inf
        self._waiting: deque[tuple[float, Outgoing]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        """Records that the job is not known to have."""
        return self.accepted - self.taken

    def add(self, record: Outgoing, now: float) -> None:
        self._waiting.append((now, record))
        self._bytes += record.size
        self.accepted += 1

    def due_at(self, bounds: Bounds, is_urgent: bool) -> float:
        """When there is something to send, on the clock of `add`; infinite when there is nothing."""
        if self.packet is not None:
            return self.retry_at
        if not self._waiting:
            return math.inf
        is_large = len(self._waiting) >= bounds.batch_records or self._bytes >= bounds.batch_bytes
        if is_large or is_urgent or self.urgent > self.taken:
            return -math.inf
        return self._waiting[0][0] + bounds.linger_seconds

    def pack(self, bounds: Bounds) -> Packet:
        """The packet that is on its way, or a new one of the oldest records, one at least."""
        if self.packet is None:
            records: list[Outgoing] = []
            size = 0
            while self._waiting and len(records) < bounds.batch_records and size < bounds.batch_bytes:
                record = self._waiting.popleft()[1]
                records.append(record)
                size += record.size
            self._bytes -= size
            batch = Batch([record.data for record in records], times=[record.time_ms for record in records])
            ids = [record.id for record in records] if any(record.id is not None for record in records) else None
            self.packet = Packet(self.lane.taken + 1, batch, ids, size)
        return self.packet

    def settle(self) -> int:
        """The packet was taken. The bytes that it held."""
        assert self.packet is not None
        size = self.packet.size
        self.taken += len(self.packet.batch)
        self.packet, self.trouble, self.failures = None, None, 0
        return size

    def put_off(self, trouble: StoreError, until: float) -> None:
        """The packet was not taken, and is to be sent again."""
        self.trouble, self.retry_at = trouble, until
        self.failures += 1
