"""Rows in a user's database, exactly once: a step's rows and its position go in one transaction, before the commit.

After a crash between the two the database stands ahead of Redis. The records in between are then processed again for
their state and outputs, and their rows are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.engine.base import NestedTransaction

from pipeline.errors import RowRejected, SinkAhead, SinkAway, SinkError
from pipeline.losses import partition_line, records_between
from pipeline.plan import SinkPlan
from pipeline.positions import Position
from pipeline.records import Batch
from pipeline.sinks.effects import Bound, Owner
from pipeline.sinks.rows import table_rows
from pipeline.sinks.sql_database import Database
from pipeline.sinks.sql_positions import Stand, create_text, make_table, move_stand, open_stand
from pipeline.sinks.sql_table import SqlTable


class SqlEffect:
    """The rows of one partition in one database, for all sinks of its stage that write there."""

    def __init__(self, database: Database, tables: Sequence[SqlTable]) -> None:
        self.sinks = tuple(table.sink.name for table in tables)
        self._database = database
        self._tables = {table.sink.name: table for table in tables}
        self._owner: Owner | None = None
        self._stand: Stand | None = None
        self._connection: Connection | None = None
        self._is_behind = False
        self._is_checked = False
        self._has_written = False
        self._checked: NestedTransaction | None = None

    def begin(self, owner: Owner, at: Position, given: Mapping[str, int]) -> Bound | None:
        """The position of the database, while it is ahead of Redis. Raises SinkAhead when writes were lost there."""
        self._take_back()
        if self._stand is None:
            self._open(owner, at)
        assert self._stand is not None
        self._is_behind = at.order < self._stand.end.order
        if not self._is_behind:
            return None
        # Behind the last step there, or behind entries that nobody has any more: those rows are of other records.
        end = owner.restored_end
        if at.order < self._stand.start.order or (end is not None and self._stand.end.order > end.order):
            raise SinkAhead(
                partition_line(
                    (owner.stage, owner.partition),
                    f"the tables {', '.join(self.sinks)} in {self._database.shown} hold rows",
                    self._stand.end,
                    at,
                ),
                records_between(at, self._stand.end),
            )
        return Bound(self._stand.end, self._stand.timers)

    def write(self, outputs: Mapping[str, Batch]) -> None:
        is_checked, self._is_checked = self._is_checked, False
        if not is_checked:
            self._insert(outputs)
        self._has_written = self._connection is not None and self._has_rows(outputs)

    def check(self, outputs: Mapping[str, Batch]) -> None:
        self._is_checked = True
        if self._is_behind or not self._has_rows(outputs):
            self._checked = None
            return
        connection = self._begun()
        with self._database.faults():
            self._checked = connection.begin_nested()
        try:
            self._insert(outputs)
        except RowRejected:
            self.undo()
            raise

    def undo(self) -> None:
        if self._checked is not None:
            with self._database.faults():
                self._checked.rollback()
            self._checked = None

    def take_back(self) -> None:
        self._take_back()

    def seal(self, start: Position, end: Position, timers: int) -> None:
        if self._connection is None:
            return
        if not self._has_written:
            # The position stays in front of a record that was refused: it must be refused again after a crash.
            self._take_back()
            return
        assert self._stand is not None
        assert self._owner is not None
        stand = Stand(self._stand.session, start, end, timers)
        with self._database.faults():
            move_stand(self._connection, self._owner, stand)
        self._database.commit()
        self._connection, self._stand, self._has_written = None, stand, False

    def close(self) -> None:
        self._take_back()
        self._stand = None

    def _open(self, owner: Owner, at: Position) -> None:
        connection = self._database.begin()
        try:
            _make_positions(self._database, connection)
            with self._database.faults():
                stand = open_stand(connection, owner, at)
            self._database.commit()
        except RowRejected as error:
            raise SinkError(f"{self._database.shown}: the table of positions cannot be written: {error}") from error
        self._owner, self._stand = owner, stand

    def _insert(self, outputs: Mapping[str, Batch]) -> None:
        if self._is_behind or not self._has_rows(outputs):
            return
        connection = self._begun()
        with self._database.faults():
            for name, table in self._tables.items():
                if name in outputs and outputs[name].values:
                    table.write(connection, _named(table_rows(table.sink, outputs[name])))

    def _has_rows(self, outputs: Mapping[str, Batch]) -> bool:
        return any(name in outputs and outputs[name].values for name in self.sinks)

    def _begun(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.begin()
        return self._connection

    def _take_back(self) -> None:
        self._checked, self._is_checked, self._has_written = None, False, False
        if self._connection is not None:
            self._connection = None
            self._database.rollback()
            for table in self._tables.values():
                table.forget()


def open_database(url: str) -> Database:
    """Connects nowhere yet. Raises SinkError for an address that cannot be one, EnvironmentFault without its driver."""
    return Database(url)


def sql_effect(database: Database, sinks: Sequence[SinkPlan]) -> SqlEffect:
    """The effect of one partition for these sinks, all of this database."""
    return SqlEffect(database, [SqlTable(sink) for sink in sinks])


def check_sql_sinks(database: Database, sinks: Sequence[SinkPlan]) -> None:
    """To be asked before a run. Raises SinkError when a table does not fit, SinkAway when the database is not there."""
    connection = database.begin()
    try:
        _make_positions(database, connection)
        with database.faults():
            for sink in sinks:
                SqlTable(sink).check(connection)
        database.commit()
    finally:
        database.drop()


def _make_positions(database: Database, connection: Connection) -> None:
    try:
        with database.faults():
            make_table(connection)
    except SinkAway:
        raise
    except SinkError as error:
        raise SinkError(
            str(error), f"let this user make tables, or make this one for it: {create_text(connection)}"
        ) from error


def _named(rows: list[dict[Any, Any]]) -> list[dict[str, Any]]:
    """Raises RowRejected for a field whose name is no text."""
    for row in rows:
        for name in row:
            if type(name) is not str:
                raise RowRejected(f"the field {name!r} cannot be the name of a column")
    return rows
