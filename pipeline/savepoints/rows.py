"""State as rows that people and other programs read and write, and what Redis holds. Pure; exact both ways.

A value is JSON in `value` where that gives back exactly the same, else MessagePack in `packed`: bytes, times, numbers
that are none, objects whose keys are no text.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pipeline.codec import (
    decode_value,
    decode_values,
    encode_state_fields,
    encode_value,
    encode_values,
    read_timer_member,
    split_state_fields,
    state_field,
    timer_member,
)
from pipeline.errors import DecodingError, EncodingError, ReadingError, SavepointError
from pipeline.keying import group_of, groups_of
from pipeline.reading.keytext import key_text, key_texts, parse_key, parse_keys
from pipeline.records import Timer

_to_json = msgspec.json.Encoder().encode
_to_lines = msgspec.json.Encoder().encode_lines
_from_json = msgspec.json.Decoder().decode

_Scalar = int | float | str | bool | None
_Flat = _Scalar | list[_Scalar] | dict[str, _Scalar]
_Exact = _Scalar | list[_Flat] | dict[str, _Flat]
"""What JSON gives back as it is, but for numbers that are none: most states. Deeper ones are seen by trying."""

_EXACT: Final = frozenset({int, str, bool, type(None)})


@contextmanager
def uncollected() -> Iterator[None]:
    """The body makes objects by the thousand that all go with it: looking for garbage among them costs twice as much
    as making them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Shown:
    """One of the two is None."""

    value: str | None
    packed: bytes | None


def show(data: bytes) -> Shown:
    """Raises DecodingError for what is no state."""
    text = _json_of(data)
    return Shown(None, data) if text is None else Shown(text, None)


def _json_of(data: bytes) -> str | None:
    """The state as JSON, or None where that would not give back exactly the same. Raises DecodingError."""
    value = decode_value(data)
    try:
        text = _to_json(value)
        # JSON gives these back as they are; of all else it is seen by trying.
        again = value if type(value) in _EXACT else _from_json(text)
        return text.decode() if encode_value(again) == data else None
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return None


def hide(value: Any, packed: Any) -> bytes:
    """What Redis holds for a row. Raises SavepointError, without a place, for a row that is wrong."""
    has_value, has_packed = not _is_null(value), not _is_null(packed)
    if has_value == has_packed:
        raise SavepointError("it needs either `value` or `packed`" + (", and has both" if has_value else ""))
    try:
        if has_packed:
            decode_value(bytes(packed))
            return bytes(packed)
        if not isinstance(value, str):
            raise SavepointError(f"its `value` is {type(value).__name__}, not JSON text")
        return encode_value(msgspec.json.decode(value))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SavepointError(f"its `value` is no JSON: {error}") from error
    except (DecodingError, EncodingError, TypeError) as error:
        raise SavepointError(f"its value cannot be read: {error}") from error


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def state_columns(
    fields: Sequence[bytes], datas: Sequence[bytes]
) -> tuple[list[str], list[str], list[str | None], list[bytes | None]]:
    """Operators, keys as text, values and packed values of fields of state hashes. Raises DecodingError.

    A whole page at a time, since a savepoint is as fast as this.
    """
    operators, keys = split_state_fields(fields)
    with uncollected():
        values = _json_column(datas)
    packed: list[bytes | None] = [None] * len(values)
    if None in values:
        packed = [data if value is None else None for data, value in zip(datas, values, strict=True)]
    return operators, key_texts(keys), values, packed


def _json_column(datas: Sequence[bytes]) -> list[str | None]:
    """Each as of `_json_of`: few calls for all of them, and one by one only where that leaves a doubt."""
    try:
        try:
            found, is_exact = decode_values(datas, _Exact), True
        except DecodingError:
            found, is_exact = decode_values(datas, Any), False
        lines = _to_lines(found).decode()
        texts = lines.split("\n")[:-1]
        if not is_exact or "null" in lines:  # as None is, and a number that is none
            found = _from_json(f"[{','.join(texts)}]")
        again = encode_values(found)
    except (DecodingError, EncodingError, msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return list(map(_json_of, datas))
    if again == datas:
        return texts  # type: ignore[return-value]
    return [text if same == data else _json_of(data) for text, same, data in zip(texts, again, datas, strict=True)]


def read_states(columns: Mapping[str, Sequence[Any]]) -> tuple[list[Any], list[bytes], list[bytes]] | None:
    """Keys, fields and data of a page of rows; None if any row is wrong: `key_of` and `hide` say which, and why."""
    if None in columns["key"]:
        return None
    try:
        keys = parse_keys(columns["key"])
        if groups_of(keys) != columns["group"]:
            return None
        fields = encode_state_fields(columns["operator"], keys)
        return keys, fields, _hide_column(columns["value"], columns["packed"])
    except (EncodingError, ReadingError, SavepointError, msgspec.MsgspecError, RecursionError):
        return None


def _hide_column(values: Sequence[Any], packed: Sequence[Any]) -> list[bytes]:
    """Each as of `hide`; raises more than that."""
    if None in values or packed.count(None) < len(packed):
        return list(map(hide, values, packed))
    return encode_values(list(map(_from_json, values)))


def key_of(text: Any, group: Any) -> Any:
    """The key of a row. Raises SavepointError, without a place, for what is no key, or is not of that group."""
    if not isinstance(text, str):
        raise SavepointError(f"its `key` is {type(text).__name__}, not text")
    try:
        key = parse_key(text)
        found = group_of(key)
    except (ReadingError, EncodingError) as error:
        raise SavepointError(f"its `key` {text!r} is none: {error}") from error
    if found != group:
        raise SavepointError(f"its `key` {text!r} is of the key group {found}, and its `group` is {group}")
    return key


def field_of(operator: str, key: Any) -> bytes:
    return state_field(operator, key)


def timer_row(member: bytes) -> tuple[str, str, int]:
    """(operator, key as text, due). Raises DecodingError."""
    timer = read_timer_member(member)
    return timer.operator, key_text(timer.key), timer.due


def timer_of(operator: str, key: Any, due: int) -> bytes:
    return timer_member(Timer(operator, key, due))
