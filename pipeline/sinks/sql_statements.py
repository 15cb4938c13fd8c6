"""The statement that writes many rows of one shape into a table, for each kind of database.

PostgreSQL is given all rows as one JSON text, which it takes apart by the columns' own types: several times faster than
a statement with values for each row, and it refuses a fraction for an integer instead of rounding it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy import column, inspect, table, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection

from pipeline.errors import RowRejected

Row: TypeAlias = dict[str, Any]

_NESTED: Final = frozenset({dict, list, tuple})
_ENCODER: Final = msgspec.json.Encoder()

_COLUMNS: Final = text(
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
    " WHERE attrelid = to_regclass(:name) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)


@dataclass(frozen=True, slots=True)
class Target:
    """A table, and what an insert does when a row of that key is there: nothing is said without a key."""

    schema: str | None
    name: str
    replaced_key: tuple[str, ...]


def read_columns(connection: Connection, schema: str | None, name: str) -> dict[str, str]:
    """Column -> its type as the database writes it; nothing when there is no such table."""
    if connection.dialect.name == "postgresql":
        found = connection.execute(_COLUMNS, {"name": _quoted(connection, schema, name)})
        return {row[0]: row[1] for row in found}
    look = inspect(connection)
    if not look.has_table(name, schema):
        return {}
    return {each["name"]: str(each["type"]) for each in look.get_columns(name, schema)}


class Writer:
    """Writes rows of one shape. Raises RowRejected for a value without a form, and SQLAlchemy's errors."""

    def __init__(self, connection: Connection, target: Target, shape: Sequence[str], types: dict[str, str]) -> None:
        self._shape = shape
        self._types = types
        self._is_json = connection.dialect.name == "postgresql"
        self._statement: Any = _recordset(connection, target, shape, types) if self._is_json else _values(target, shape)

    def write(self, connection: Connection, rows: list[Row]) -> None:
        if self._is_json:
            connection.execute(self._statement, {"rows": self._as_json(rows)})
        else:
            connection.execute(self._statement, self._with_nested_as_text(rows))

    def _as_json(self, rows: list[Row]) -> str:
        changes: dict[str, Any] = {}
        for name in self._shape:
            kinds = {type(row[name]) for row in rows}
            if float in kinds and not all(type(row[name]) is not float or math.isfinite(row[name]) for row in rows):
                changes[name] = _number
            if bytes in kinds:
                changes[name] = _hexadecimal
        if changes:
            rows = [{**row, **{name: change(row[name]) for name, change in changes.items()}} for row in rows]
        try:
            return _ENCODER.encode(rows).decode()
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise RowRejected(f"a value has no form in a table: {error}") from error

    def _with_nested_as_text(self, rows: list[Row]) -> list[Row]:
        nested = [name for name in self._shape if {type(row[name]) for row in rows} & _NESTED]
        for name in self._shape:
            if "INT" in self._types[name].upper():
                _refuse_fractions(name, rows)
        if not nested:
            return rows
        return [{**row, **{name: _json(row[name]) for name in nested}} for row in rows]


def _values(target: Target, shape: Sequence[str]) -> Any:
    insert: Any = sqlite.insert(table(target.name, *(column(each) for each in shape), schema=target.schema))
    if not target.replaced_key:
        return insert
    changed = {each: insert.excluded[each] for each in shape if each not in target.replaced_key}
    if changed:
        return insert.on_conflict_do_update(index_elements=target.replaced_key, set_=changed)
    return insert.on_conflict_do_nothing(index_elements=target.replaced_key)


def _recordset(connection: Connection, target: Target, shape: Sequence[str], types: dict[str, str]) -> Any:
    def quote(name: str) -> str:
        return _quoted(connection, None, name).replace(":", "\\:")

    names = ", ".join(quote(each) for each in shape)
    typed = ", ".join(f"{quote(each)} {types[each]}" for each in shape)
    into = _quoted(connection, target.schema, target.name).replace(":", "\\:")
    parts = [f"INSERT INTO {into} ({names}) SELECT {names} FROM json_to_recordset(CAST(:rows AS json)) AS r({typed})"]
    if target.replaced_key:
        parts.append(f"ON CONFLICT ({', '.join(map(quote, target.replaced_key))}) DO")
        changed = [f"{quote(each)} = excluded.{quote(each)}" for each in shape if each not in target.replaced_key]
        parts.append(f"UPDATE SET {', '.join(changed)}" if changed else "NOTHING")
    return text(" ".join(parts))


def _quoted(connection: Connection, schema: str | None, name: str) -> str:
    quote = connection.dialect.identifier_preparer.quote_identifier
    return f"{quote(schema)}.{quote(name)}" if schema else quote(name)


def _number(value: Any) -> Any:
    return str(value) if type(value) is float and not math.isfinite(value) else value


def _hexadecimal(value: Any) -> Any:
    return f"\\x{value.hex()}" if type(value) is bytes else value


def _refuse_fractions(name: str, rows: list[Row]) -> None:
    """SQLite would keep them, in a column of integers."""
    for row in rows:
        value = row[name]
        if type(value) is float and not value.is_integer():
            raise RowRejected(f"the column {name!r} takes integers, not {value}")


def _json(value: Any) -> Any:
    if type(value) not in _NESTED:
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_refuse)
    except (TypeError, ValueError, RecursionError) as error:
        raise RowRejected(f"a value has no form in a table: {error}") from error


def _refuse(value: object) -> Iterable[Any]:
    raise TypeError(f"{type(value).__name__} in a list or dict")
