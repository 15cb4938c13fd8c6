"""Rows of a database in the order of columns that grow, read with SQLAlchemy, which is an extra."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.errors import CeleriacError, EnvironmentFault, InputError, SourceAway
from pipeline.records import Batch
from pipeline.sinks.secrets import without_secrets
from pipeline.sources.endless import After, Portion, nothing
from pipeline.sources.feed import BATCH_BYTES, BATCH_RECORDS
from pipeline.sources.sqlvalues import as_position, from_position, plain, size_of
from pipeline.validation import suggestion

try:
    import sqlalchemy as sa
    from sqlalchemy import exc
except ModuleNotFoundError as error:
    raise EnvironmentFault("read.sql needs SQLAlchemy", hint="pip install 'celeriac[sql]'") from error

SQL_SPLIT: Final = "rows"
"""The one split of such a source."""

FIRST_ROWS: Final = 100
"""What is asked for before the size of a row is known."""

# SQLSTATE classes and codes of PostgreSQL that a later attempt may not meet any more.
_PASSING: Final = ("08", "40", "53", "55", "57", "58")
_REFUSED: Final = ("no such table", "no such column", "syntax error", "ambiguous", "misuse")
_AUTHENTICATION: Final = ("password authentication failed", "no password supplied", 'role "', 'database "', "pg_hba")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SqlTable:
    """What is read: a table (perhaps with its schema) or a query, and the columns that together grow and are unique."""

    text: str
    columns: tuple[str, ...]

    @property
    def is_query(self) -> bool:
        return any(char.isspace() for char in self.text.strip())


class SqlRows:
    """A `pipeline.sources.endless.Source` and its one split: rows behind the last one, by the values of the columns."""

    name = SQL_SPLIT

    def __init__(self, url: str, table: SqlTable, poll_seconds: float) -> None:
        """`url` may hold a password. Nothing is connected. Raises EnvironmentFault, InputError for a bad address."""
        self.poll_seconds = poll_seconds
        self._table = table
        self._where = without_secrets(url)
        self._is_given = False
        try:
            self.engine = sa.create_engine(_with_driver(url), pool_size=1, max_overflow=1, hide_parameters=True)
        except ModuleNotFoundError as error:
            raise EnvironmentFault(
                f"the driver {error.name} for {self._where} is not installed",
                hint="pip install 'celeriac[postgres]', or the driver of your database",
            ) from error
        except (exc.ArgumentError, ValueError) as error:
            raise InputError(
                f"{self._where} is no address of a database",
                hint="postgresql://user:password@host/name, sqlite:///x.db",
            ) from error

    def look(self, room: int) -> Sequence[SqlRows]:
        if self._is_given:
            return ()
        self._is_given = True
        return (self,)

    def forgettable(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self.engine.dispose()

    def open(self, position: Any) -> SqlReader:
        """Checks the table when it is read for the first time. Raises SourceAway, InputError."""
        try:
            self._check_file()
            if not self._table.is_query:
                with self.engine.connect() as connection:
                    check_table(sa.inspect(connection), self._table)
        except exc.SQLAlchemyError as error:
            raise self.translated(error) from error
        return SqlReader(self, self._table, position)

    def translated(self, error: exc.SQLAlchemyError) -> CeleriacError:
        """SourceAway for what may pass, InputError for what will not. Neither shows the address's password."""
        text = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        if isinstance(error, exc.DBAPIError):
            state = getattr(error.orig, "sqlstate", None) or ""
            is_lasting = any(words in text for words in (*_REFUSED, *_AUTHENTICATION))
            is_connection = isinstance(error, exc.OperationalError | exc.InterfaceError)
            if (
                state[:2] in _PASSING
                or (not state and is_connection and not is_lasting)
                or error.connection_invalidated
            ):
                return SourceAway(f"the database {self._where} does not answer: {text}")
        return InputError(
            f"the database {self._where} refuses {self._table.text!r}: {text}",
            hint="check the query, the rights of the user, and the password",
        )

    def _check_file(self) -> None:
        """SQLite makes a file that is missing, which is never what a reader wants."""
        url = self.engine.url
        if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
            raise SourceAway(f"there is no file {url.database}", hint="it is read as soon as it is there")


class SqlReader:
    """Each read is one query of so many rows as about BATCH_BYTES hold, by the size of the rows before."""

    def __init__(self, source: SqlRows, table: SqlTable, position: Any) -> None:
        self._source = source
        self._columns = table.columns
        self._last = None if position is None else from_position(position)
        self._from = _from_clause(table)
        self._limit = FIRST_ROWS

    def read(self) -> Portion:
        try:
            return self._read()
        except exc.SQLAlchemyError as error:
            raise self._source.translated(error) from error

    def close(self) -> None:
        """The engine keeps its connection for the next reader."""

    def _read(self) -> Portion:
        with self._source.engine.connect() as connection:
            result = connection.execute(self._query())
            names = list(result.keys())
            found = result.all()
        if not found:
            return nothing(After.WAITING)
        places = [_index(names, column) for column in self._columns]
        values = [tuple(row[place] for place in places) for row in found]
        as_position(values[-1], self._columns)  # a type that cannot be kept is told before anything is taken
        rows = [{name: plain(value) for name, value in zip(names, row, strict=True)} for row in found]
        self._last = values[-1]
        after = After.MORE if len(rows) == self._limit else After.WAITING
        size = sum(size_of(value) for row in found for value in row)
        self._limit = max(1, min(2 * self._limit, BATCH_RECORDS, len(rows) * BATCH_BYTES // max(size, 1)))
        columns = self._columns
        return Portion(
            Batch(rows), after, lambda at: as_position(values[at], columns), lambda at: f"row at {values[at]!r}"
        )

    def _query(self) -> Any:
        columns: list[Any] = [sa.column(name) for name in self._columns]
        query: Any = sa.select(sa.literal_column("*")).select_from(self._from)
        query = query.where(*(column.is_not(None) for column in columns))
        if self._last is not None:
            query = query.where(_behind(columns, self._last))
        return query.order_by(*columns).limit(self._limit)


def check_table(inspector: Any, table: SqlTable) -> None:
    """Raises InputError unless the table is there, has the columns, and says that they are unique together."""
    schema, _, name = table.text.strip().rpartition(".")
    try:
        found = [column["name"] for column in inspector.get_columns(name, schema or None)]
    except exc.NoSuchTableError as error:
        known = [*inspector.get_table_names(schema or None), *inspector.get_view_names(schema or None)]
        raise InputError(f"there is no table {table.text!r}", hint=suggestion(name, known)) from error
    for column in table.columns:
        if column not in found:
            raise InputError(f"the table {table.text!r} has no column {column!r}", hint=suggestion(column, found))
    if name in inspector.get_view_names(schema or None):
        return
    unique = [inspector.get_pk_constraint(name, schema or None)["constrained_columns"]]
    unique += [each["column_names"] for each in inspector.get_unique_constraints(name, schema or None)]
    unique += [each["column_names"] for each in inspector.get_indexes(name, schema or None) if each["unique"]]
    if not any(each and set(each) <= set(table.columns) for each in unique):
        key = next((each for each in unique if each), ["id"])
        shown = [*table.columns, *(each for each in key if each not in table.columns)]
        raise InputError(
            f"the table {table.text!r} does not say that {', '.join(table.columns)} is unique: rows could be left out",
            hint=f"name columns that are unique together: column={shown!r}, or make a unique index",
        )


def _from_clause(table: SqlTable) -> Any:
    if table.is_query:
        query = table.text.strip().rstrip(";").replace(":", "\\:")  # a colon is no parameter here
        return sa.text(f"({query}) AS celeriac_rows")
    schema, _, name = table.text.strip().rpartition(".")
    return sa.table(name, schema=schema or None)


def _behind(columns: list[Any], last: tuple[Any, ...]) -> Any:
    """(a, b) > (x, y), in a form that every database has."""
    first, rest = columns[0], columns[1:]
    if not rest:
        return first > last[0]
    return sa.or_(first > last[0], sa.and_(first == last[0], _behind(rest, last[1:])))


def _index(names: list[str], column: str) -> int:
    if column not in names:
        raise InputError(f"the query gives no column {column!r}", hint=suggestion(column, names))
    return names.index(column)


def _with_driver(url: str) -> str:
    """PostgreSQL through psycopg 3, unless the address names another driver."""
    scheme, separator, rest = url.partition("://")
    return f"postgresql+psycopg{separator}{rest}" if scheme in ("postgres", "postgresql") else url
