"""The stateless nodes over column batches, and the joining of batches. Holds no state and changes no column.

An output may share columns with its input, so nobody may change a column after handing it on. User functions
are called in comprehensions, never through `map` or `filter`: there, a StopIteration ends the batch silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, compress, repeat
from typing import Any, TypeAlias, TypeVar

from pipeline.errors import PipelineError
from pipeline.graph import Filter, FlatMap, KeyBy, Map, MapWithKey, Union
from pipeline.kernel.contract import Emitted
from pipeline.keying import check_keys
from pipeline.records import MAX_TIME, Batch
from pipeline.wording import counted

Stateless: TypeAlias = Map | MapWithKey | Filter | FlatMap | KeyBy | Union

T = TypeVar("T")


def apply(node: Stateless, batch: Batch) -> Batch:
    """The node's outputs, in order. Raises what the user's function raises, EncodingError for a bad key."""
    match node:
        case Map():
            fn = node.fn
            return Batch([fn(value) for value in batch.values], batch.keys, batch.times, batch.ids)
        case MapWithKey():
            return _map_with_key(node, batch)
        case Filter():
            return _filter(node, batch)
        case FlatMap():
            return _flat_map(node, batch)
        case KeyBy():
            key_of = node.fn
            keys = [key_of(value) for value in batch.values]
            check_keys(keys)
            return Batch(batch.values, keys, batch.times, batch.ids)
        case Union():
            return Batch(batch.values, None, batch.times, batch.ids)


def keys_of(name: str, batch: Batch) -> list[Any]:
    """The key column. Raises PipelineError where the stream has none; `name` is who needs it."""
    if batch.keys is None:
        raise PipelineError(f"{name!r} needs a keyed stream", hint="put key_by in front of it")
    return batch.keys


def inherit(name: str, batch: Batch, emitted: Emitted) -> Batch:
    """The outputs of keyed operator `name`, with the columns of the records they come from.

    An output that is the only one of its record keeps its id; of several each gets `id/name/index`.
    Raises TypeError when the outputs do not line up with their origins.
    """
    origins = emitted.origins
    expected = len(batch) if origins is None else len(origins)
    if len(emitted.values) != expected:
        raise TypeError(f"{counted(len(emitted.values), 'output')} emitted for {counted(expected, 'origin')}")
    if origins is None:
        return Batch(emitted.values, batch.keys, batch.times, batch.ids)
    ids = None if batch.ids is None else _output_ids(name, batch.ids, origins)
    return Batch(emitted.values, _gather(batch.keys, origins), _gather(batch.times, origins), ids)


def concatenate(batches: Sequence[Batch]) -> Batch:
    """One batch of all records, in order.

    Keys and ids are absent unless every batch has them. Times are absent if no batch has them; a batch
    without them among others is one emitted at the end of input, and its records get MAX_TIME.
    """
    if len(batches) == 1:
        return batches[0]
    times = None
    if any(batch.times is not None for batch in batches):
        times = _flat([MAX_TIME] * len(batch) if batch.times is None else batch.times for batch in batches)
    keys = [batch.keys for batch in batches if batch.keys is not None]
    ids = [batch.ids for batch in batches if batch.ids is not None]
    return Batch(
        _flat(batch.values for batch in batches),
        _flat(keys) if len(keys) == len(batches) else None,
        times,
        _flat(ids) if len(ids) == len(batches) else None,
    )


def _map_with_key(node: MapWithKey, batch: Batch) -> Batch:
    fn = node.fn
    keys = keys_of(node.name, batch)
    values = [fn(key, value) for key, value in zip(keys, batch.values, strict=True)]
    return Batch(values, keys, batch.times, batch.ids)


def _filter(node: Filter, batch: Batch) -> Batch:
    fn = node.fn
    if batch.keys is None and batch.times is None and batch.ids is None:
        return Batch([value for value in batch.values if fn(value)])
    kept = [True if fn(value) else False for value in batch.values]  # noqa: SIM210  bool() is a slower call
    return Batch(
        list(compress(batch.values, kept)),
        None if batch.keys is None else list(compress(batch.keys, kept)),
        None if batch.times is None else list(compress(batch.times, kept)),
        None if batch.ids is None else list(compress(batch.ids, kept)),
    )


def _flat_map(node: FlatMap, batch: Batch) -> Batch:
    fn = node.fn
    if batch.keys is None and batch.times is None and batch.ids is None:
        return Batch([item for value in batch.values for item in fn(value)])
    groups = [list(fn(value)) for value in batch.values]
    counts = [len(group) for group in groups]
    ids = None
    if batch.ids is not None:
        pairs = zip(batch.ids, counts, strict=True)
        ids = [f"{origin}/{node.name}/{index}" for origin, count in pairs for index in range(count)]
    return Batch(_flat(groups), _stretch(batch.keys, counts), _stretch(batch.times, counts), ids)


def _output_ids(name: str, ids: list[str], origins: list[int]) -> list[str]:
    totals: dict[int, int] = {}
    for origin in origins:
        totals[origin] = totals.get(origin, 0) + 1
    made: dict[int, int] = {}
    result = []
    for origin in origins:
        index = made.get(origin, 0)
        made[origin] = index + 1
        result.append(ids[origin] if totals[origin] == 1 else f"{ids[origin]}/{name}/{index}")
    return result


def _flat(columns: Iterable[Iterable[T]]) -> list[T]:
    return list(chain.from_iterable(columns))


def _gather(column: list[T] | None, origins: list[int]) -> list[T] | None:
    return None if column is None else [column[origin] for origin in origins]


def _stretch(column: list[T] | None, counts: list[int]) -> list[T] | None:
    return None if column is None else _flat(map(repeat, column, counts))
