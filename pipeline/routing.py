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


class _Known(dict[Any, int]):
    """Key -> partition. Remembers, since hashing costs more than a look-up."""

    def __init__(self, partitions: int) -> None:
        super().__init__()
        self._table = first_table(partitions)

    def __missing__(self, key: Any) -> int:
        if len(self) >= _KEYS_KEPT:
            self.clear()
        target = self[key] = self._table[group_of(key)]
        return target


class Router:
    """Key -> partition of one exchange."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._known = _Known(partitions)

    def split(self, batch: Batch) -> dict[int, Batch]:
        """The batch by target partition; order is kept within each. Raises EncodingError for a bad key."""
        if self._partitions == 1:
            return {0: batch}
        keys = batch.keys or []
        is_large = len(keys) >= self._partitions
        if is_large and batch.times is None and batch.ids is None:
            return self._split_plain(keys, batch.values)
        known = self._known
        # Of many keys it costs less to try all partitions.
        targets = range(self._partitions) if is_large else {known[key] for key in keys}
        places: dict[int, list[int]] = {target: [] for target in targets}
        for index, key in enumerate(keys):
            places[known[key]].append(index)
        return {target: _pick(batch, indices) for target, indices in places.items() if indices}

    def _split_plain(self, keys: list[Any], values: list[Any]) -> dict[int, Batch]:
        targets = range(self._partitions)
        new_keys: list[list[Any]] = [[] for _ in targets]
        new_values: list[list[Any]] = [[] for _ in targets]
        take_key = [column.append for column in new_keys]
        take_value = [column.append for column in new_values]
        for target, key, value in zip(map(self._known.__getitem__, keys), keys, values, strict=True):
            take_key[target](key)
            take_value[target](value)
        return {target: Batch(new_values[target], new_keys[target]) for target in targets if new_values[target]}


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
