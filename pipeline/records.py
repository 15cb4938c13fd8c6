"""Records in columns: what the kernel processes and the codec stores. No Redis, no Celery, no Spark here."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Key: TypeAlias = Hashable
"""`str`, `int`, `bytes`, or a tuple of these. Checked by `pipeline.keying`."""

MAX_TIME: Final = 2**53 - 1
"""The event time, in milliseconds, after every other: a watermark of this value is the end of input.
2**53 - 1 is the largest number that Lua, JSON and a Redis score hold exactly."""

MIN_TIME: Final = -(2**53 - 1)
"""The watermark of a sender that has promised nothing yet."""


@dataclass(slots=True)
class Batch:
    """Columns of equal length. A column that is None is absent for the whole batch.

    values: one object per record.
    keys: one key per record, or None on a stream that is not keyed.
    times: event time in milliseconds since 1970 (UTC), or None where the stream carries none.
    ids: the records' own ids, or None.
    faults: records that could not be read at their source, as index -> reason. Their value is the raw text.
    """

    values: list[Any]
    keys: list[Any] | None = None
    times: list[int] | None = None
    ids: list[str] | None = None
    faults: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> Batch:
        """The records start <= i < stop, as a new batch."""
        return Batch(
            self.values[start:stop],
            None if self.keys is None else self.keys[start:stop],
            None if self.times is None else self.times[start:stop],
            None if self.ids is None else self.ids[start:stop],
            {i - start: why for i, why in self.faults.items() if start <= i < stop} if self.faults else {},
        )

    def at(self, places: Sequence[int]) -> Batch:
        """The records at these places, without faults."""
        return Batch(
            [self.values[i] for i in places],
            None if self.keys is None else [self.keys[i] for i in places],
            None if self.times is None else [self.times[i] for i in places],
            None if self.ids is None else [self.ids[i] for i in places],
        )


@dataclass(frozen=True, slots=True)
class Timer:
    """One wake-up of one key of one operator. `due` is event time in milliseconds."""

    operator: str
    key: Key
    due: int
