"""Rows of one table: which columns it has, what a row must be, and the statement that writes many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
    inspect,
    select,
)
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateTable

from pipeline.errors import RowRejected, SinkError
from pipeline.plan import SinkPlan
from pipeline.sinks.sql_statements import Row, Target, Writer, read_columns

_TYPES: Final[dict[type, Any]] = {
    bool: Boolean,
    int: BigInteger,
    float: Double,
    str: Text,
    bytes: LargeBinary,
    datetime: DateTime(timezone=True),
    dict: JSON,
    list: JSON,
    tuple: JSON,
}


@dataclass
class SqlTable:
    """The table of one sink, as far as one worker knows it."""

    sink: SinkPlan
    _columns: dict[str, str] = field(default_factory=dict)
    _writers: dict[tuple[str, ...], Writer] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.sink.options["table"])

    @property
    def key(self) -> list[str]:
        return list(self.sink.options.get("key") or [])

    @property
    def is_upsert(self) -> bool:
        return bool(self.sink.options.get("mode") == "upsert")

    def forget(self) -> None:
        """What is known of the table may not be so: it is read again."""
        self._columns, self._writers = {}, {}

    def check(self, connection: Connection) -> None:
        """To be asked before a run. Raises SinkError when the table is missing and not to be made, or does not fit."""
        if not self._read(connection):
            if not self.sink.options.get("create"):
                raise self._missing(connection, {name: Text() for name in self._key_columns()}, ", and more columns")
            return
        missing = [name for name in self._key_columns() if name not in self._columns]
        if missing:
            raise SinkError(
                f"the sink {self.sink.name!r}: the table {self.name} has no column {', '.join(map(repr, missing))}",
                f"it has: {', '.join(self._columns)}",
            )
        if self.is_upsert and not self._is_unique(connection):
            names = ", ".join(self.key)
            raise SinkError(
                f"the sink {self.sink.name!r}: {names} is no key of the table {self.name}, so no row is replaced by it",
                f"CREATE UNIQUE INDEX ON {self.name} ({names})",
            )

    def write(self, connection: Connection, rows: list[Row]) -> None:
        """Inserts the rows, or replaces those of the same key. Raises RowRejected, SinkError, SQLAlchemy's errors."""
        if self.is_upsert:
            rows = self._last_of_each_key(rows)
        if not self._columns and not self._read(connection):
            self._make(connection, rows)
        by_shape: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            by_shape.setdefault(tuple(row), []).append(row)
        for shape, alike in by_shape.items():
            if shape not in self._writers:
                self._writers[shape] = self._writer(connection, shape)
            self._writers[shape].write(connection, alike)

    def _key_columns(self) -> list[str]:
        own = [self.sink.key_field] if self.sink.key_field else []
        return list(dict.fromkeys([*own, *self.key]))

    def _split(self) -> tuple[str | None, str]:
        schema, _, name = self.name.rpartition(".")
        return schema or None, name

    def _read(self, connection: Connection) -> bool:
        self._columns = read_columns(connection, *self._split())
        return bool(self._columns)

    def _is_unique(self, connection: Connection) -> bool:
        schema, name = self._split()
        look = inspect(connection)
        keys: list[Any] = [look.get_pk_constraint(name, schema)["constrained_columns"]]
        keys += [each["column_names"] for each in look.get_unique_constraints(name, schema)]
        keys += [each["column_names"] for each in look.get_indexes(name, schema) if each["unique"]]
        return any(set(found) == set(self.key) for found in keys)

    def _make(self, connection: Connection, rows: list[Row]) -> None:
        types = self._types_of(rows)
        if not self.sink.options.get("create"):
            raise self._missing(connection, types)
        if connection.dialect.name == "postgresql":
            # Of two that make one table at once the second is refused there, by a catalog. It waits for the first.
            connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(self.name))))
        if not self._read(connection):
            self._described(types).create(connection)
            self._read(connection)

    def _types_of(self, rows: list[Row]) -> dict[str, Any]:
        """Integers and fractions together are numbers; else the first kind counts; a column of nulls is text."""
        found: dict[str, Any] = dict.fromkeys(self._key_columns())
        for row in rows:
            for name, value in row.items():
                kind = _TYPES.get(type(value))
                if found.get(name) is None or (found[name] is BigInteger and kind is Double):
                    found[name] = kind
        return {name: kind or Text for name, kind in found.items()}

    def _described(self, types: Mapping[str, Any]) -> Table:
        schema, name = self._split()
        columns = [
            Column(each, kind, primary_key=each in self.key, autoincrement=False) for each, kind in types.items()
        ]
        return Table(name, MetaData(), *columns, schema=schema)

    def _missing(self, connection: Connection, types: Mapping[str, Any], more: str = "") -> SinkError:
        text = " ".join(str(CreateTable(self._described(types)).compile(dialect=connection.dialect)).split())
        return SinkError(
            f"the sink {self.sink.name!r}: there is no table {self.name}",
            f"make it ({text}{more}), or let it be made from the first rows with create=True",
        )

    def _writer(self, connection: Connection, shape: tuple[str, ...]) -> Writer:
        unknown = [name for name in shape if name not in self._columns]
        if unknown:
            raise RowRejected(f"the table {self.name} has no column {unknown[0]!r}; it has {', '.join(self._columns)}")
        key = tuple(self.key) if self.is_upsert else ()
        return Writer(connection, Target(*self._split(), key), shape, self._columns)

    def _last_of_each_key(self, rows: list[Row]) -> list[Row]:
        """One row for each key, with what one statement after the other would leave."""
        found: dict[tuple[Any, ...], Row] = {}
        for row in rows:
            try:
                key = tuple([row[name] for name in self.key])
            except KeyError as error:
                raise RowRejected(f"a row has no {error}, which is the key of {self.name}") from error
            try:
                found[key] = {**found[key], **row} if key in found else row
            except TypeError as error:
                raise RowRejected(f"{key!r} cannot be a key of {self.name}: {error}") from error
        return list(found.values())
