"""Aggregates that Spark has computed, as a task of their keyed stage reads them: all keys, or none in doubt."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from pipeline.spark.bulk.facts import NativeFact

DOUBTFUL, HEAD, FILTERED, ARRIVED = 0, 1, 2, 3
"""The levels of rows: in doubt, the head of a file, dropped by a filter, or with a key. A task meets them in order."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Keys, how many records each has, and for each aggregation its states."""

    keys: list[Any]
    records: list[int]
    states: list[list[Any]]


@dataclass(frozen=True, slots=True)
class FinalRows:
    """The columns: level, parts of the key, records, and a result for each aggregation but counts.

    entry: the stage whose records they are of. operators: the aggregate, and the `last` behind it. headers: how many
    heads of files there must be. is_tuple, width: of the key. kinds: of the aggregations.
    """

    entry: int
    operators: tuple[str, str]
    headers: int
    is_tuple: bool
    width: int
    kinds: tuple[str, ...]

    def read(self, batches: Iterator[pa.RecordBatch], fact: NativeFact) -> Iterator[Groups]:
        """No keys when the fact, which is complete before the first of them, has a doubt."""
        for batch in batches:
            levels, *columns = [column.to_pylist() for column in batch.columns]
            start = bisect_left(levels, ARRIVED)
            self._note(fact, levels[:start], columns[self.width])
            if start < len(levels) and not self.doubts(fact):
                yield self._groups([column[start:] for column in columns])

    def doubts(self, fact: NativeFact) -> int:
        """How many rows are in doubt, heads that are missing or too many included."""
        return fact.doubts + abs(fact.headers - self.headers)

    def _note(self, fact: NativeFact, levels: list[int], records: list[int]) -> None:
        for level, number in zip(levels, records, strict=False):
            fact.doubts += number if level == DOUBTFUL else 0
            fact.headers += number if level == HEAD else 0
            fact.filtered += number if level == FILTERED else 0

    def _groups(self, columns: list[list[Any]]) -> Groups:
        parts, (records, *results) = columns[: self.width], columns[self.width :]
        keys = list(zip(*parts, strict=True)) if self.is_tuple else parts[0]
        given = iter(results)
        states = [list(map(_STATES[kind], records if kind == "count" else next(given), records)) for kind in self.kinds]
        return Groups(keys, records, states)


_STATES: Final[dict[str, Callable[[Any, int], Any]]] = {
    "count": lambda result, _records: result,
    "total": lambda result, _records: [result, 0, 0.0],
    "mean": lambda result, records: [result, 0, 0.0, records],
    "minimum": lambda result, _records: result,
    "maximum": lambda result, _records: result,
}
"""As `pipeline.aggregates` keeps them."""
