"""Aggregations: how many values become one, step by step. Owns their states: numbers, lists, or a value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Field: TypeAlias = str | Callable[[Any], Any] | None
"""What is aggregated: the entry of that name of each value, what the function gives, or the value itself."""


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A fold over the values of one key. `name` stands in its errors, `kind` is the name of a built-in one, and
    `field` what that takes of each value.

    create() gives the state before the first value; add(state, value) the state after it, and may change the
    state in place; result(state) the result so far, and must not change it. A state must be encodable.
    """

    name: str
    create: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]
    kind: str = ""
    field: Field = None


def count() -> Aggregation:
    """The number of values."""
    return COUNT


def total(field: Field = None) -> Aggregation:
    """The sum: exact, an int, while all numbers are ints; otherwise a float, added with compensation.

    `add` raises TypeError for None and whatever else is not an int or float.
    """
    name = _label("total", field)
    read = _reader(field)

    def add(state: list[Any], value: Any) -> list[Any]:
        _add_number(name, state, value if read is None else read(value))
        return state

    return Aggregation(name, lambda: [0, 0, 0.0], add, _sum_of, "total", field)


def mean(field: Field = None) -> Aggregation:
    """The arithmetic mean, a float. The sum of ints is exact.

    The sum of floats is compensated: A. Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation
    endlicher Summen", ZAMM 54 (1974), pages 39-51, the "improved Kahan-Babuska algorithm". To first order its
    error does not grow with the number of values. `add` raises TypeError for None and whatever else is not an
    int or float.
    """
    name = _label("mean", field)
    read = _reader(field)

    def add(state: list[Any], value: Any) -> list[Any]:
        _add_number(name, state, value if read is None else read(value))
        state[3] += 1
        return state

    return Aggregation(name, lambda: [0, 0, 0.0, 0], add, _mean_of, "mean", field)


def minimum(field: Field = None) -> Aggregation:
    """The smallest, by `<`; of equals the first. A tuple comes out as a list.

    `add` raises TypeError for None and for what cannot be compared.
    """
    name = _label("minimum", field)
    read = _reader(field)

    def add(state: Any, value: Any) -> Any:
        item = _storable(value if read is None else read(value))
        if item is None:
            raise _refusal(name, item, "a value")
        return item if state is None or item < state else state

    return Aggregation(name, _nothing, add, _itself, "minimum", field)


def maximum(field: Field = None) -> Aggregation:
    """The largest, by `>`; of equals the first. A tuple comes out as a list.

    `add` raises TypeError for None and for what cannot be compared.
    """
    name = _label("maximum", field)
    read = _reader(field)

    def add(state: Any, value: Any) -> Any:
        item = _storable(value if read is None else read(value))
        if item is None:
            raise _refusal(name, item, "a value")
        return item if state is None or item > state else state

    return Aggregation(name, _nothing, add, _itself, "maximum", field)


def _add_number(name: str, state: list[Any], number: Any) -> None:
    """`state` begins with: sum of ints, sum of floats (an int, 0, until there is one), its compensation."""
    if type(number) is float or isinstance(number, float):
        before = state[1]
        after = before + number
        if abs(before) >= abs(number):
            state[2] += (before - after) + number
        else:
            state[2] += (number - after) + before
        state[1] = after
    elif isinstance(number, int):
        state[0] += number
    else:
        raise _refusal(name, number, "a number")


def _sum_of(state: list[Any]) -> int | float:
    ints, floats, compensation = state[:3]
    if isinstance(floats, int):
        return int(ints)
    # After an infinity the compensation is inf - inf.
    rest = floats + compensation if math.isfinite(floats) else floats
    return float(ints + rest)


def _mean_of(state: list[Any]) -> float:
    return _sum_of(state) / int(state[3])


def _refusal(name: str, item: Any, wanted: str) -> TypeError:
    came = "None" if item is None else f"{item!r:.80} ({type(item).__name__})"
    return TypeError(f"{name} needs {wanted}, got {came}: filter such records out, or convert them in a map")


def _storable(item: Any) -> Any:
    """A tuple as the list that it would come back as, so that the next one compares with it."""
    return [_storable(part) for part in item] if isinstance(item, tuple) else item


def _label(name: str, field: Field) -> str:
    if field is None:
        return f"{name}()"
    if isinstance(field, str):
        return f"{name}({field!r})"
    return f"{name}({getattr(field, '__name__', repr(field))})"


def _reader(field: Field) -> Callable[[Any], Any] | None:
    if isinstance(field, str):
        return lambda value: value[field]
    return field


def _nothing() -> None:
    return None


def _itself(state: Any) -> Any:
    return state


def _one_more(state: int, _value: Any) -> int:
    return state + 1


COUNT = Aggregation("count()", int, _one_more, _itself, "count")
"""What `count` returns: operators recognise it, and copies of it, and count faster."""

RESULTS: Final[dict[str, Callable[[Any], Any]]] = {
    "count": _itself,
    "total": _sum_of,
    "mean": _mean_of,
    "minimum": _itself,
    "maximum": _itself,
}
"""Kind of a built-in aggregation -> how its state becomes its result, for those without the pipeline's file."""
