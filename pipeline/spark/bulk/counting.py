"""Counts of which only the final value is wanted: each task in front of the exchange counts its records by key itself.

So a key crosses the exchange once for each task, with a number, and not once for each record. Nothing else changes: a
task counts only what could have been sent, keys keep the order in which they first came, and the stage behind has the
same state, timers and results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from pipeline.graph import Graph, KeyBy, Keyed, Node
from pipeline.kernel.contract import Emitted, KeyedOperator, TimerChanges
from pipeline.kernel.operators import Aggregate, Last
from pipeline.records import Batch

_MOST_KEYS: Final = 100_000
_MOST_BYTES: Final = 16 << 20
_BATCH_KEYS: Final = 4_000


def counted_exchanges(graph: Graph) -> dict[str, str]:
    """The exchanges whose records are only counted, each with the operator that does, and that feeds `last` alone."""
    behind: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for source in node.inputs:
            behind.setdefault(source, []).append(node)
    found = {}
    for exchange in graph.nodes:
        match isinstance(exchange, KeyBy) and behind.get(exchange.name):
            case [Keyed(name=name, operator=Aggregate() as operator)] if _only_counts(operator):
                match behind.get(name):
                    case [Keyed(operator=Last())]:
                        found[exchange.name] = name
    return found


def with_numbers(graph: Graph, operator: str) -> Graph:
    """The graph with that aggregate taking, in the place of records, how many there are of a key."""
    return replace(graph, nodes=tuple(_with_numbers(node) if node.name == operator else node for node in graph.nodes))


def _with_numbers(node: Node) -> Node:
    assert isinstance(node, Keyed)
    assert isinstance(node.operator, Aggregate)
    return replace(node, operator=_AddedUp(node.operator))


def _only_counts(operator: Aggregate) -> bool:
    return all(part.kind == "count" for part in operator.parts())


@dataclass(frozen=True, slots=True, eq=False)
class _AddedUp(KeyedOperator):
    """The aggregate, which only counts, over numbers of records."""

    aggregate: Aggregate

    def process(
        self,
        keys: list[Any],
        values: list[Any],
        state: dict[Any, Any],
        timers: TimerChanges,
    ) -> Emitted:
        parts, is_list = len(self.aggregate.parts()), isinstance(self.aggregate.aggregation, dict)
        reached = []
        for key, number in zip(keys, values, strict=True):
            held = state.get(key)
            if held is not None:
                number += held[0] if is_list else held
            state[key] = [number] * parts if is_list else number
            reached.append(number)
        return Emitted(self.aggregate.results([reached] * parts))


class KeyCounts:
    """How many records of each key a task has for an exchange, until it gives them: at the latest when `is_full`."""

    def __init__(self) -> None:
        self._numbers: Counter[Any] = Counter()
        self._bytes = 0

    def add(self, keys: list[Any], size: int) -> None:
        """`size`: the bytes of these records, of which new keys take their share."""
        before = len(self._numbers)
        self._numbers.update(keys)
        self._bytes += size * (len(self._numbers) - before) // max(1, len(keys))

    @property
    def is_full(self) -> bool:
        return len(self._numbers) >= _MOST_KEYS or self._bytes >= _MOST_BYTES

    def take(self) -> Iterator[Batch]:
        """The keys in the order in which they first came, each with its number as value; none is left."""
        keys, numbers = list(self._numbers), list(self._numbers.values())
        self._numbers, self._bytes = Counter(), 0
        for at in range(0, len(keys), _BATCH_KEYS):
            part = slice(at, at + _BATCH_KEYS)
            yield Batch(numbers[part], keys[part])
