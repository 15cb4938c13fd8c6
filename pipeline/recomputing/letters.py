"""Dead letters of a job beside those of the recomputation: which records only one of both has given up. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from pipeline.codec import encode_value
from pipeline.errors import DecodingError
from pipeline.records import Batch
from pipeline.spark.bulk.letters import Letter
from pipeline.store.letters import DeadLetter

_Failed = tuple[int, str, bytes]
"""Stage, kind, and the record."""


def not_given_up(
    live: Iterable[DeadLetter], computed: Iterable[Letter], stages: Collection[int], stage: int, keys: Collection[Any]
) -> list[DeadLetter]:
    """Letters of the job whose records the recomputation has counted: a replay would count them twice.

    Of these stages; of the `stage` that the keys are of, theirs only. One that cannot be read counts as such.
    """
    known = Counter(_failed(letter.stage, letter.kind, letter.record()) for letter in computed)
    found = []
    for letter in live:
        if letter.stage not in stages:
            continue
        failed = _of(letter)
        if failed is None:
            found.append(letter)
            continue
        record, identity = failed
        if letter.stage == stage and record.keys is not None and record.keys[0] not in keys:
            continue
        if known[identity]:
            known[identity] -= 1
        else:
            found.append(letter)
    return found


def only_computed(live: Iterable[DeadLetter], computed: Iterable[Letter]) -> list[Letter]:
    """Records that the recomputation has given up, and of which the job has no letter."""
    known = Counter(identity for letter in live for _, identity in _readable(letter))
    found = []
    for letter in computed:
        identity = _failed(letter.stage, letter.kind, letter.record())
        if known[identity]:
            known[identity] -= 1
        else:
            found.append(letter)
    return found


def _readable(letter: DeadLetter) -> Iterator[tuple[Batch, _Failed]]:
    found = _of(letter)
    if found is not None:
        yield found


def _of(letter: DeadLetter) -> tuple[Batch, _Failed] | None:
    if letter.kind not in ("record", "timer"):
        return None
    try:
        record = letter.record()
        return record, _failed(letter.stage, letter.kind, record)
    except DecodingError:
        return None


def _failed(stage: int, kind: str, record: Batch) -> _Failed:
    key = record.keys[0] if record.keys else None
    time = record.times[0] if record.times else None
    return stage, kind, encode_value([record.values[0], key, time])
