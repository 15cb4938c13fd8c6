"""Which partition of a keyed stage records go to, and in what payloads: the same in every engine. Pure."""

from __future__ import annotations

from typing import Any, Final

from pipeline.codec import encode_batch
from pipeline.errors import EncodingError
from pipeline.keying import first_table, group_of
from pipeline.records import Batch
from pipeline.settings import Limits

_KEYS_KEPT: Final = 200_000
"""Keys whose partition is remembered; the memory is emptied when it is full."""


class Router:
    """Key -> partition of one exchange. Remembers, since hashing costs more than a look-up."""

    def __init__(self, partitions: int) -> None:
        self._table = first_table(partitions)
        self._partitions = partitions
        self._known: dict[Any, int] = {}

    def split(self, batch: Batch) -> dict[int, Batch]:
        """The batch by target partition; order is kept within each."""
        if self._partitions == 1:
            return {0: batch}
        routes = self._routes(batch.keys or [])
        if batch.times is None and batch.ids is None:
            return self._split_plain(batch, routes)
        places: dict[int, list[int]] = {}
        for index, target in enumerate(routes):
            places.setdefault(target, []).append(index)
        return {target: _pick(batch, indices) for target, indices in places.items()}

    def _split_plain(self, batch: Batch, routes: list[int]) -> dict[int, Batch]:
        parts = {target: Batch([], []) for target in set(routes)}
        take_key = {target: part.keys.append for target, part in parts.items() if part.keys is not None}
        take_value = {target: part.values.append for target, part in parts.items()}
        for target, key, value in zip(routes, batch.keys or (), batch.values, strict=True):
            take_key[target](key)
            take_value[target](value)
        return parts

    def _routes(self, wanted: list[Any]) -> list[int]:
        known = self._known
        try:
            return [known[key] for key in wanted]
        except KeyError:
            if len(known) > _KEYS_KEPT:
                known.clear()
            table = self._table
            for key in set(wanted):
                if key not in known:
                    known[key] = table[group_of(key)]
            return [known[key] for key in wanted]


def _pick(batch: Batch, indices: list[int]) -> Batch:
    return Batch(
        [batch.values[i] for i in indices],
        None if batch.keys is None else [batch.keys[i] for i in indices],
        None if batch.times is None else [batch.times[i] for i in indices],
        None if batch.ids is None else [batch.ids[i] for i in indices],
    )


def payloads(batch: Batch, limits: Limits) -> list[tuple[int, bytes]]:
    """The batch as payloads within the limits, each with its number of records. Raises EncodingError."""
    if not batch.values:
        return []
    payload = encode_batch(batch)
    if len(payload) <= min(limits.record_bytes, limits.entry_bytes):
        return [(len(batch), payload)]
    if len(batch) > 1:
        half = len(batch) // 2
        return payloads(batch.slice(0, half), limits) + payloads(batch.slice(half, len(batch)), limits)
    if len(payload) > limits.record_bytes:
        raise EncodingError(f"an output has {len(payload)} bytes, more than the limit of {limits.record_bytes}", 0)
    return [(1, payload)]
