"""Effects that cannot be taken back, at least once: each record comes with a key that is the same on every retry.

The key is made of the job, the sink, the partition, the record's number among all that this partition has given the
sink, and a digest of what it holds. The number is committed with the step, so whoever takes over counts on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from time import monotonic
from typing import Any, Final, Protocol

import msgspec

from pipeline.errors import SinkAway
from pipeline.plan import SinkPlan
from pipeline.positions import Position
from pipeline.records import Batch
from pipeline.sinks.effects import Bound, Owner
from pipeline.sinks.rows import encode_rows
from pipeline.wording import counted

STEP_SECONDS: Final = 10.0
"""A step that takes longer is broken off and goes on after what was delivered: its worker must not count as stuck."""

_DIGEST_BYTES: Final = 6


@dataclass(frozen=True, slots=True)
class Delivery:
    """One record for a place outside. `row` is what a jsonl sink would write for it, without the line end."""

    key: Any
    value: Any
    row: bytes
    idempotency_key: str


class Carrier(Protocol):
    """Brings records to one place outside. `batch` is the most that it takes at once."""

    batch: int

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Returns when the place has taken all of them, in order.

        Raises SinkAway, SinkError, and RowRejected or OperatorError when it refuses a record.
        """

    def drop(self) -> None:
        """Closes its connections; `deliver` opens them anew."""


class NumberedEffect:
    """The records of one partition for one sink. What was delivered is not delivered again by the same owner."""

    def __init__(self, sink: SinkPlan, carrier: Carrier, clock: Callable[[], float] = monotonic) -> None:
        self.sinks: tuple[str, ...] = (sink.name,)
        self._clock = clock
        self._sink = msgspec.structs.replace(sink, format="jsonl")
        self._carrier = carrier
        self._prefix = ""
        self._given = 0
        self._next = 0
        self._checked = 0
        self._is_checked = False
        self._delivered: dict[int, str] = {}

    def begin(self, owner: Owner, at: Position, given: Mapping[str, int]) -> Bound | None:
        name = self.sinks[0]
        self._prefix = f"{owner.job}.{owner.run}/{name}/{owner.place}/"
        self._given = self._next = given.get(name, 0)
        self._is_checked = False
        for number in [number for number in self._delivered if number < self._given]:
            del self._delivered[number]
        return None

    def write(self, outputs: Mapping[str, Batch]) -> None:
        is_checked, self._is_checked = self._is_checked, False
        if not is_checked:
            self._next = self._given
            self._deliver(outputs)

    def check(self, outputs: Mapping[str, Batch]) -> None:
        self._is_checked, self._checked = True, self._next
        self._deliver(outputs)

    def undo(self) -> None:
        """What was delivered stands. The next record has the same number, but another digest."""
        self._next = self._checked

    def take_back(self) -> None:
        self._next, self._is_checked = self._given, False

    def seal(self, start: Position, end: Position, timers: int) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        self._is_checked = False

    def _deliver(self, outputs: Mapping[str, Batch]) -> None:
        batch = outputs.get(self.sinks[0])
        if batch is None or not batch.values:
            return
        first = self._next
        fresh = [
            (number, delivery)
            for number, delivery in enumerate(self._deliveries(batch, first), first)
            if self._delivered.get(number) != delivery.idempotency_key
        ]
        started = self._clock()
        for at in range(0, len(fresh), self._carrier.batch):
            if self._clock() - started > STEP_SECONDS:
                raise SinkAway(
                    f"the sink {self.sinks[0]!r} is slow:"
                    f" {at} of {counted(len(fresh), 'record')} in {STEP_SECONDS:.0f} s"
                )
            part = fresh[at : at + self._carrier.batch]
            self._carrier.deliver([delivery for _, delivery in part])
            self._delivered.update((number, delivery.idempotency_key) for number, delivery in part)
        self._next = first + len(batch)

    def _deliveries(self, batch: Batch, first: int) -> list[Delivery]:
        rows = encode_rows(self._sink, batch).split(b"\n")
        keys = batch.keys if batch.keys is not None else [None] * len(batch)
        return [
            Delivery(key, value, row, f"{self._prefix}{number}-{blake2b(row, digest_size=_DIGEST_BYTES).hexdigest()}")
            for number, (key, value, row) in enumerate(zip(keys, batch.values, rows[:-1], strict=True), first)
        ]
