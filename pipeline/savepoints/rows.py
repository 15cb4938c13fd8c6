"""State as rows that people and other programs read and write, and what Redis holds. Pure; exact both ways.

A value is JSON in `value` where that gives back exactly the same, else MessagePack in `packed`: bytes, times, numbers
that are none, objects whose keys are no text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec

from pipeline.codec import (
    decode_value,
    encode_value,
    read_timer_member,
    split_state_field,
    state_field,
    timer_member,
)
from pipeline.errors import DecodingError, EncodingError, ReadingError, SavepointError
from pipeline.keying import group_of
from pipeline.reading.keytext import key_text, parse_key
from pipeline.records import Timer

_to_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Shown:
    """One of the two is None."""

    value: str | None
    packed: bytes | None


def show(data: bytes) -> Shown:
    """Raises DecodingError for what is no state."""
    value = decode_value(data)
    try:
        text = _to_json(value)
        if encode_value(msgspec.json.decode(text)) == data:
            return Shown(text.decode(), None)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        pass
    return Shown(None, data)


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


def state_row(field: bytes, data: bytes) -> tuple[str, str, Shown]:
    """(operator, key as text, value) of one field of a state hash. Raises DecodingError."""
    operator, key = split_state_field(field)
    return operator, key_text(key), show(data)


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
