"""Plain values into an Arrow column of a given type, strictly: what would be cut, rounded or guessed is refused. A
fraction in a column of 32 bits is the nearest that there is."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

_MISFITS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError, InvalidOperation, AttributeError)
_NOTHING: Final = type(None)


def exact_type(kind: Any) -> Any:
    """The type that msgspec decodes a value as and that all others but null fail, or Any where it has none."""
    for test, exact in (
        (pa.types.is_boolean, bool | None),
        (pa.types.is_integer, int | None),
        (pa.types.is_float64, int | float | None),
        (pa.types.is_string, str | None),
    ):
        if test(kind):
            return exact
    return Any


def fitted(values: Sequence[Any], kind: Any, *, is_exact: bool = False) -> Any:
    """The column. With `is_exact` the values are known to be of `exact_type`.

    Raises ValueError with the index of the first value that does not fit as its argument.
    """
    try:
        if is_exact and exact_type(kind) is not Any:
            return pa.array(values, kind)
        return _column(values, kind)
    except _MISFITS:
        for index, value in enumerate(values):
            try:
                _column([value], kind)
            except _MISFITS as error:
                raise ValueError(index) from error
        raise


def _column(values: Sequence[Any], kind: Any) -> Any:
    plain = _reader_for(kind)
    if plain is not None:
        values = [plain(value) for value in values]
    _check(values, kind)
    return pa.array(values, kind)


def _check(values: Sequence[Any], kind: Any) -> None:
    """Arrow alone takes 1.5 for 1, and bytes for text. Raises TypeError, OverflowError."""
    types = set(map(type, values)) - {_NOTHING}
    if pa.types.is_struct(kind):
        _only(types, dict)
        for field in kind:
            _check([value.get(field.name) for value in values if value is not None], field.type)
    elif pa.types.is_map(kind):
        _only(types, dict)
        _check([key for value in values if value is not None for key in value], kind.key_type)
        _check([item for value in values if value is not None for item in value.values()], kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _only(types, list)
        _check([item for value in values if value is not None for item in value], kind.value_type)
    else:
        _only(types, *_allowed(kind))
        if pa.types.is_float32(kind):
            numbers = [value for value in values if type(value) is float]
            struct.pack(f"<{len(numbers)}f", *numbers)  # OverflowError where Arrow makes infinity of a number


def _only(types: set[type], *allowed: type) -> None:
    if not types <= set(allowed):
        raise TypeError("a value of another type")


def _allowed(kind: Any) -> tuple[type, ...]:
    """The types of plain values that a column of this type takes."""
    for test, types in (
        (pa.types.is_boolean, (bool,)),
        (pa.types.is_integer, (int,)),
        (pa.types.is_floating, (int, float)),
        (pa.types.is_string, (str,)),
        (pa.types.is_binary, (bytes,)),
        (pa.types.is_timestamp, (datetime,)),
        (pa.types.is_date, (date,)),
        (pa.types.is_decimal, (Decimal,)),
    ):
        if test(kind):
            return types
    raise TypeError(f"columns of {kind} are not read")


def _reader_for(kind: Any) -> Callable[[Any], Any] | None:
    """What is done before Arrow takes a value, or nothing: dates and decimals are stored as text."""
    if pa.types.is_date(kind):
        return lambda value: date.fromisoformat(value) if type(value) is str else value
    if pa.types.is_decimal(kind):
        return lambda value: Decimal(value) if type(value) in (str, int) else value
    if pa.types.is_struct(kind):
        parts = {field.name: part for field in kind if (part := _reader_for(field.type)) is not None}
        return _struct_reader(parts) if parts else None
    if pa.types.is_list(kind):
        item = _reader_for(kind.value_type)
        return None if item is None else lambda value: None if value is None else [item(each) for each in value]
    if pa.types.is_map(kind):
        inner = _reader_for(kind.item_type)
        return None if inner is None else _map_reader(inner)
    return None


def _map_reader(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else {name: inner(each) for name, each in value.items()}


def _struct_reader(parts: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value is None:
            return None
        return {**value, **{name: part(value.get(name)) for name, part in parts.items()}}

    return read
