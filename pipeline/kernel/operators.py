"""The keyed operators of the core. They hold settings only; every other operator is built from these.

The state is plain data that nobody else holds, as if it had just been loaded: a function that changes it in
place, or puts a tuple or a set in it, sees the same however the stream is cut and whenever state is reloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from pipeline.aggregates import COUNT, Aggregation
from pipeline.codec import decode_value, encode_value
from pipeline.errors import PipelineError
from pipeline.kernel.contract import Emitted, KeyedOperator, TimerChanges
from pipeline.records import MAX_TIME

_ABSENT: Final = object()

_ATOMS: Final = frozenset({int, float, str, bytes, bool, type(None)})
"""Types whose values need no copy."""

_KEPT: Final = _ATOMS | {list, dict}
"""Types that a state keeps when it is stored and loaded; what is inside is looked at when the key is new."""


@dataclass(frozen=True, slots=True, eq=False)
class Reduce(KeyedOperator):
    """Emits, for each record, fn(value so far, value), and for a key's first record its value.

    The state is what was emitted last, as plain data: a tuple in it comes back to fn as a list.
    """

    fn: Callable[[Any, Any], Any]

    def process(
        self,
        keys: list[Any],
        values: list[Any],
        state: dict[Any, Any],
        timers: TimerChanges,
    ) -> Emitted:
        fn, get, absent, atoms = self.fn, state.get, _ABSENT, _ATOMS
        out: list[Any] = []
        emit = out.append
        for key, value in zip(keys, values, strict=True):
            held = get(key, absent)
            held = value if held is absent else fn(held, value)
            state[key] = held if type(held) in atoms else _as_loaded(held)
            emit(held)
        return Emitted(out)


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate(KeyedOperator):
    """Emits, for each record, the result so far of its key: one result, or a dict of them for a dict.

    The state is the aggregation's own; for a dict the list of them, in its order. Raises PipelineError when
    made from anything else.
    """

    aggregation: Aggregation | dict[str, Aggregation]

    def __post_init__(self) -> None:
        given = self.aggregation
        parts = list(given.values()) if isinstance(given, dict) else [given]
        wrong = [part for part in parts if not isinstance(part, Aggregation)]
        if wrong:
            raise PipelineError(
                f"{wrong[0]!r} is not an aggregation", hint='call it, for example count() or mean("field")'
            )
        if not parts:
            raise PipelineError("an aggregation of nothing", hint="give at least one name and aggregation")

    def aggregates(self) -> str | dict[str, str]:
        if isinstance(self.aggregation, dict):
            return {name: part.kind for name, part in self.aggregation.items()}
        return self.aggregation.kind

    def parts(self) -> list[Aggregation]:
        """Its aggregations, in their order."""
        return list(self.aggregation.values()) if isinstance(self.aggregation, dict) else [self.aggregation]

    def results(self, states: Sequence[Sequence[Any]]) -> list[Any]:
        """What is emitted for some keys, of which each part has these states."""
        columns = [list(map(part.result, held)) for part, held in zip(self.parts(), states, strict=True)]
        if not isinstance(self.aggregation, dict):
            return columns[0]
        names = tuple(self.aggregation)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def process(
        self,
        keys: list[Any],
        values: list[Any],
        state: dict[Any, Any],
        timers: TimerChanges,
    ) -> Emitted:
        if isinstance(self.aggregation, dict):
            return Emitted(_aggregate_several(self.aggregation, keys, values, state))
        if self.aggregation == COUNT:  # one that was carried to a task of Spark is a copy
            return Emitted(_count(keys, state))
        return Emitted(_aggregate(self.aggregation, keys, values, state))


@dataclass(frozen=True, slots=True, eq=False)
class StatefulMap(KeyedOperator):
    """Emits, for each record, the output of fn(key, value, state) -> (output, new state).

    The state of a new key is None, and a new state of None deletes the key's. It is plain data: a tuple or set
    in it comes back to fn as a list. Raises TypeError in `process` when fn returns anything but a tuple of two.
    """

    fn: Callable[[Any, Any, Any], tuple[Any, Any]]

    def process(
        self,
        keys: list[Any],
        values: list[Any],
        state: dict[Any, Any],
        timers: TimerChanges,
    ) -> Emitted:
        fn, get, atoms, kept = self.fn, state.get, _ATOMS, _KEPT
        out: list[Any] = []
        emit = out.append
        for key, value in zip(keys, values, strict=True):
            before = get(key)
            pair: Any = fn(key, value, before)
            if not isinstance(pair, tuple) or len(pair) != 2:
                came = f"{pair!r:.80} ({type(pair).__name__})"
                raise TypeError(f"the function must return a pair (output, new state), got {came}")
            output, held = pair
            emit(output)
            if held is None:
                state.pop(key, None)
            elif type(held) in atoms:
                state[key] = held
            elif before is None or held is output or held is value or type(held) not in kept:
                state[key] = _as_loaded(held)
            else:
                state[key] = held
        return Emitted(out)


@dataclass(frozen=True, slots=True, eq=False)
class Last(KeyedOperator):
    """Keeps the last value of each key and emits it at the end of input.

    A key has a timer, at MAX_TIME, exactly as long as it has state: the state goes when the timer fires.
    """

    def process(
        self,
        keys: list[Any],
        values: list[Any],
        state: dict[Any, Any],
        timers: TimerChanges,
    ) -> Emitted:
        newest = dict(zip(keys, values, strict=True))
        for key, value in newest.items():
            if key not in state:
                timers.set(key, MAX_TIME)
            state[key] = value if type(value) in _ATOMS else _as_loaded(value)
        return Emitted([], [])

    def on_timer(
        self,
        keys: Sequence[Any],
        dues: Sequence[int],
        state: dict[Any, Any],
        timers: TimerChanges,
    ) -> Emitted:
        origins = [index for index, key in enumerate(keys) if key in state]
        return Emitted([state.pop(keys[index]) for index in origins], origins)


def _count(keys: list[Any], state: dict[Any, Any]) -> list[Any]:
    get = state.get
    out: list[Any] = []
    emit = out.append
    for key in keys:
        state[key] = number = get(key, 0) + 1
        emit(number)
    return out


def _aggregate(aggregation: Aggregation, keys: list[Any], values: list[Any], state: dict[Any, Any]) -> list[Any]:
    create, add, result = aggregation.create, aggregation.add, aggregation.result
    get, absent, atoms, kept = state.get, _ABSENT, _ATOMS, _KEPT
    out: list[Any] = []
    emit = out.append
    for key, value in zip(keys, values, strict=True):
        held = get(key, absent)
        if held is absent:
            held = _as_loaded(add(create(), value))
        else:
            held = add(held, value)
            if type(held) not in kept:
                held = _as_loaded(held)
        state[key] = held
        answer = result(held)
        emit(answer if type(answer) in atoms else deepcopy(answer))
    return out


def _aggregate_several(
    parts: dict[str, Aggregation], keys: list[Any], values: list[Any], state: dict[Any, Any]
) -> list[Any]:
    creates = [part.create for part in parts.values()]
    adds = [(place, part.add) for place, part in enumerate(parts.values())]
    results = [(place, name, part.result) for place, (name, part) in enumerate(parts.items())]
    get, atoms, kept = state.get, _ATOMS, _KEPT
    out: list[Any] = []
    emit = out.append
    for key, value in zip(keys, values, strict=True):
        held = get(key)
        is_new = held is None
        if held is None:
            held = [create() for create in creates]
        for place, add in adds:
            one = add(held[place], value)
            held[place] = _as_loaded(one) if is_new or type(one) not in kept else one
        state[key] = held
        emit(
            {
                name: answer if type(answer := result(held[place])) in atoms else deepcopy(answer)
                for place, name, result in results
            }
        )
    return out


def _as_loaded(held: Any) -> Any:
    """The state as it comes back from the store. Raises EncodingError for what cannot be stored."""
    return decode_value(encode_value(held))
