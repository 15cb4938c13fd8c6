"""What tasks tell the driver besides records and dead letters: counts, how far splits were read. Plain data."""

from __future__ import annotations

from typing import Any, Final

import msgspec


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


class NativeFact(msgspec.Struct):
    """What a task tells of rows that Spark computed: heads of files, rows in doubt, and those that a filter dropped."""

    headers: int = 0
    doubts: int = 0
    filtered: int = 0


_encoder: Final = msgspec.msgpack.Encoder()


def encode_fact(fact: msgspec.Struct) -> bytes:
    return _encoder.encode(fact)


def decode_fact(data: bytes, kind: Any) -> Any:
    """The fact, of the class `kind`. Raises msgspec.MsgspecError for anything else."""
    return msgspec.msgpack.decode(data, type=kind)
