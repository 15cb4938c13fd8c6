"""Values of a database as values of records, and as positions that JSON has."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

from pipeline.errors import InputError
from pipeline.sources.endless import foreign_position


def plain(value: Any) -> Any:
    """The value as records have it: numbers, text, bytes and times as they are; what they have not, as exact text.

    Decimal, date, time of day, interval and UUID become text, sets and tuples lists; a datetime without a zone counts
    as UTC. What is none of these is left, and makes the record a dead letter.
    """
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case dt.datetime():
            return value.astimezone(dt.UTC) if value.tzinfo else value.replace(tzinfo=dt.UTC)
        case dt.date() | dt.time():
            return value.isoformat()
        case Decimal():
            return format(value, "f")  # `str` makes 0E-8 of 0.00000000
        case uuid.UUID() | dt.timedelta():
            return str(value)
        case memoryview() | bytearray():
            return bytes(value)
        case list() | tuple() | set() | frozenset():
            return [plain(each) for each in value]
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case _:
            return value


def size_of(value: Any) -> int:
    """Bytes in memory, about."""
    return len(value) if isinstance(value, str | bytes) else 8


def as_position(values: tuple[Any, ...], columns: tuple[str, ...]) -> list[Any]:
    """JSON that `from_position` turns into equal values of the same types. Raises InputError for other types."""
    return [_tagged(value, column) for value, column in zip(values, columns, strict=True)]


def from_position(position: Any) -> tuple[Any, ...]:
    """Raises InputError for a position that is none of ours."""
    try:
        return tuple(_untagged(kind, text) for kind, text in position)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise foreign_position(position) from error


def _tagged(value: Any, column: str) -> list[Any]:
    match value:
        case bool():
            return ["bool", value]
        case int() | str():
            return [type(value).__name__, value]
        case float() if value == value:
            return ["float", repr(value)]
        case dt.datetime():
            return ["datetime", value.isoformat()]
        case dt.date():
            return ["date", value.isoformat()]
        case Decimal() if value.is_finite():
            return ["decimal", str(value)]
        case uuid.UUID():
            return ["uuid", str(value)]
        case bytes() | memoryview():
            return ["bytes", bytes(value).hex()]
        case _:
            raise InputError(
                f"the column {column!r} holds {value!r} of type {type(value).__name__}, which cannot be read on from",
                hint="choose a column of numbers, text or times that grows",
            )


def _untagged(kind: str, value: Any) -> Any:
    match kind:
        case "float":
            return float(value)
        case "datetime":
            return dt.datetime.fromisoformat(value)
        case "date":
            return dt.date.fromisoformat(value)
        case "decimal":
            return Decimal(value)
        case "uuid":
            return uuid.UUID(value)
        case "bytes":
            return bytes.fromhex(value)
        case _:
            return value
