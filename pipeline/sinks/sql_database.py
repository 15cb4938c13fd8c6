"""One connection to a user's database and its transactions, with every wait bounded and every error made ours."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from sqlalchemy import create_engine, event, exc
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import NullPool

from pipeline.errors import CeleriacError, EnvironmentFault, RowRejected, SinkAway, SinkError
from pipeline.sinks.secrets import without_secrets

CONNECT_SECONDS: Final = 3
STATEMENT_SECONDS: Final = 15.0
_LOCK_SECONDS: Final = 5

ANSWER_SECONDS = STATEMENT_SECONDS + 5.0
"""After this silence a server counts as frozen: it keeps its own bound no more."""

_SESSION: Final = (
    f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'; SET LOCAL statement_timeout = '{STATEMENT_SECONDS:.0f}s';"
    # A frozen owner must not keep its locks for ever, and a constraint must speak before the commit.
    " SET LOCAL idle_in_transaction_session_timeout = '10s'; SET CONSTRAINTS ALL IMMEDIATE"
)
_REJECTING_CLASSES: Final = ("22", "23", "P0")
"""SQLSTATE classes of errors that are the row's: data, constraints, and what a trigger raises."""

_REJECTING: Final = ("42804", "42846")
"""A value of a type that its column does not take."""

_LASTING_CLASSES: Final = ("42", "3D", "3F", "28", "0A")
_LASTING_SQLITE: Final = ("no such", "has no column", "readonly", "read-only", "syntax error", "not a database")


class Database:
    """One connection, made when it is needed and dropped after a fault. Not safe for threads.

    One transaction at a time: what is left open by a step that broke off is rolled back when the next one begins.
    """

    def __init__(self, url: str) -> None:
        """Raises SinkError for an address that cannot be one, EnvironmentFault without the driver."""
        self.shown = without_secrets(url)
        try:
            self._engine = _engine(url)
        except ModuleNotFoundError as error:
            raise EnvironmentFault(
                f"writing to {self.shown} needs {error.name}", "pip install 'celeriac[postgres]'"
            ) from error
        except (exc.ArgumentError, ValueError) as error:
            raise SinkError(f"{self.shown} is not the address of a database") from error
        self._connection: Connection | None = None

    @property
    def dialect(self) -> str:
        return self._engine.dialect.name

    def begin(self) -> Connection:
        """A connection with a transaction that has just begun. Raises SinkAway, SinkError."""
        if self._connection is not None and self._connection.in_transaction():
            self.rollback()
        with self.faults():
            if self._connection is None:
                self._connection = self._engine.connect()
            self._connection.begin()
            return self._connection

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Bounds what is done to the connection within, and turns its errors into RowRejected, SinkAway, SinkError."""
        watch = self._watch()
        try:
            yield
        except exc.StatementError as error:
            raise self._fault(error) from error
        finally:
            watch.cancel()

    def commit(self) -> None:
        """Raises SinkAway: whether it was applied is then unknown; SinkError, RowRejected."""
        assert self._connection is not None
        with self.faults():
            self._connection.commit()

    def rollback(self) -> None:
        """Never raises: a connection that cannot go back is dropped."""
        try:
            if self._connection is not None:
                with self.faults():
                    self._connection.rollback()
        except CeleriacError:
            self.drop()

    def drop(self) -> None:
        """Closes the connection; the next transaction makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(exc.SQLAlchemyError):
                connection.invalidate()
            with suppress(exc.SQLAlchemyError):
                connection.close()

    def _watch(self) -> threading.Timer:
        """A server that is frozen answers nothing: after some time its socket is shut, which ends the wait."""
        watch = threading.Timer(ANSWER_SECONDS, self._shut)
        watch.daemon = True
        if self.dialect != "sqlite":
            watch.start()
        return watch

    def _shut(self) -> None:
        connection = self._connection
        with suppress(Exception):  # it may be closed by now
            raw: Any = connection.connection.driver_connection if connection is not None else None
            with socket.socket(fileno=os.dup(raw.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    def _fault(self, error: exc.StatementError) -> CeleriacError:
        shown = _shown(error)
        if not isinstance(error, exc.DBAPIError) or _is_of_row(error):
            return RowRejected(f"the database refuses a row: {shown}")
        if _is_lasting(error, self.dialect):
            return SinkError(f"{self.shown} refuses: {shown}", "correct the address, the table or the rights there")
        self.drop()
        return SinkAway(f"the database {self.shown} is away: {shown}")


def _engine(url: str) -> Engine:
    if url.startswith("sqlite"):
        arguments: dict[str, Any] = {"timeout": _LOCK_SECONDS, "isolation_level": None}
    else:
        arguments = {"connect_timeout": CONNECT_SECONDS, "application_name": "celeriac"}
    engine = create_engine(url, poolclass=NullPool, hide_parameters=True, connect_args=arguments)
    first = "BEGIN IMMEDIATE" if engine.dialect.name == "sqlite" else _SESSION

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(first)

    event.listen(engine, "begin", begin)
    return engine


def _shown(error: exc.StatementError) -> str:
    """The first line of what the database says; rows are not in it, but for what its own message quotes."""
    text = str(error.orig or error).strip()
    return next(iter(text.splitlines()), type(error.orig or error).__name__)[:500]


def _is_of_row(error: exc.DBAPIError) -> bool:
    state = str(getattr(error.orig, "sqlstate", None) or "")
    if state:
        return state[:2] in _REJECTING_CLASSES or state in _REJECTING
    if isinstance(error, exc.IntegrityError | exc.DataError):
        return True
    # SQLite and psycopg for a Python value that has no form there.
    return isinstance(error, exc.ProgrammingError | exc.InterfaceError) and (
        "binding parameter" in str(error.orig) or "cannot adapt" in str(error.orig)
    )


def _is_lasting(error: exc.DBAPIError, dialect: str) -> bool:
    if dialect == "sqlite":
        return any(word in str(error.orig) for word in _LASTING_SQLITE)
    state = str(getattr(error.orig, "sqlstate", None) or "")
    return state[:2] in _LASTING_CLASSES or isinstance(error, exc.ProgrammingError)
