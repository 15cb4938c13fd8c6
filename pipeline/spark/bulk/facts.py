"""What tasks tell the driver besides records: counts, dead letters, files. Plain data, and its bytes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pipeline.codec import decode_batch
from pipeline.records import Batch

ERROR_CHARACTERS: Final = 2000
TRACEBACK_CHARACTERS: Final = 8000


class Letter(msgspec.Struct, frozen=True):
    """A record given up. `payload` is the record as a batch of one; of a timer, its due time.

    kind: record or timer. tried: a line for each attempt before the last one: milliseconds, number, error.
    holds: later records of its key are held behind it.
    """

    stage: int
    partition: int
    operator: str
    error: str
    traceback: str
    payload: bytes
    kind: str = "record"
    tried: tuple[str, ...] = ()
    holds: bool = False

    def record(self) -> Batch:
        """The record as a batch of one."""
        return decode_batch(self.payload)


class Counts(msgspec.Struct):
    """What one task did for its stage. `seconds` is the time in operators, encoding and files; `sunk` by sink."""

    stage: int
    partition: int
    taken: int = 0
    emitted: int = 0
    filtered: int = 0
    dead: int = 0
    skipped: int = 0
    held: int = 0
    seconds: float = 0.0
    sunk: dict[str, int] = {}


class SplitCount(msgspec.Struct, frozen=True):
    """How many records of a split were read: the highest number of its sender."""

    source: str
    split: str
    records: int


_encoder: Final = msgspec.msgpack.Encoder()


def encode_fact(fact: msgspec.Struct) -> bytes:
    return _encoder.encode(fact)


def decode_fact(data: bytes, kind: Any) -> Any:
    """The fact, of the class `kind`. Raises msgspec.MsgspecError for anything else."""
    return msgspec.msgpack.decode(data, type=kind)
