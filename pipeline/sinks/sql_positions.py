"""The table `celeriac_positions` in the user's database: how far each partition's rows are there, and who may go on.

A row belongs to one (job, run, stage, partition). `term` only grows, and `session` is new with each opening: an update
names it, so whoever has opened before can write nothing more, whatever he still has on the way.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, String, Table, and_, func, inspect, select
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql import ColumnElement

from pipeline.errors import SinkAway
from pipeline.positions import Position
from pipeline.sinks.effects import Owner

TABLE_NAME: Final = "celeriac_positions"

_NAME: Final = String(128)

POSITIONS: Final = Table(
    TABLE_NAME,
    MetaData(),
    Column("job", _NAME, primary_key=True),
    Column("run", _NAME, primary_key=True),
    Column("stage", Integer, primary_key=True, autoincrement=False),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
    Column("session", _NAME, nullable=False),
    Column("start_entry", _NAME, nullable=False),
    Column("start_record", BigInteger, nullable=False),
    Column("end_entry", _NAME, nullable=False),
    Column("end_record", BigInteger, nullable=False),
    Column("timers", BigInteger, nullable=False),
    Column("updated_at", DateTime, nullable=False, server_default=func.current_timestamp()),
)


@dataclass(frozen=True, slots=True)
class Stand:
    """The last step whose rows are in the database: from `start` to `end`; `timers`: how many timers it fired."""

    session: str
    start: Position
    end: Position
    timers: int


def create_text(connection: Connection) -> str:
    """The statement that makes the table in this database."""
    return " ".join(str(CreateTable(POSITIONS).compile(dialect=connection.dialect)).split())


def make_table(connection: Connection) -> None:
    """Makes the table unless it is there. Raises SQLAlchemy's errors, also when another makes it just now."""
    if not inspect(connection).has_table(TABLE_NAME):
        POSITIONS.create(connection, checkfirst=True)


def open_stand(connection: Connection, owner: Owner, at: Position) -> Stand:
    """Where the rows of the partition stand; from now on all others are refused.

    Waits for a transaction of an earlier owner that is not through yet. Raises SinkAway when a later owner was here.
    """
    session = f"{owner.term}:{secrets.token_hex(8)}"
    connection.execute(POSITIONS.update().where(_earlier(owner)).values(session=session))
    taken = connection.execute(
        POSITIONS.update().where(_place(owner), POSITIONS.c.term <= owner.term).values(term=owner.term, session=session)
    )
    if taken.rowcount == 0:
        known = connection.execute(select(POSITIONS.c.term).where(_place(owner))).scalar()
        if known is not None:
            raise SinkAway(
                f"fenced by the database: it knows an owner with term {known}, and this one has {owner.term}"
            )
        first = {"start_entry": at.entry, "start_record": at.record, "end_entry": at.entry, "end_record": at.record}
        names = {"job": owner.job, "run": owner.run, "stage": owner.stage, "partition": owner.partition}
        connection.execute(POSITIONS.insert().values(**names, term=owner.term, session=session, timers=0, **first))
    row = connection.execute(select(POSITIONS).where(_place(owner))).one()
    return Stand(
        session, Position(row.start_entry, row.start_record), Position(row.end_entry, row.end_record), row.timers
    )


def move_stand(connection: Connection, owner: Owner, to: Stand) -> None:
    """Moves the position with the rows of a step. Raises SinkAway when somebody has opened since."""
    moved = connection.execute(
        POSITIONS.update()
        .where(_place(owner), POSITIONS.c.session == to.session)
        .values(
            start_entry=to.start.entry,
            start_record=to.start.record,
            end_entry=to.end.entry,
            end_record=to.end.record,
            timers=to.timers,
            updated_at=func.current_timestamp(),
        )
    )
    if moved.rowcount != 1:
        raise SinkAway("fenced by the database: another worker has taken this partition over")


def _earlier(owner: Owner) -> ColumnElement[bool]:
    """The rows of earlier generations: their owners may not write any more. `run` is `made_at.generation`."""
    columns = POSITIONS.c
    return and_(
        columns.job == owner.job,
        columns.run != owner.run,
        columns.run.startswith(owner.run.partition(".")[0] + ".", autoescape=True),
        columns.stage == owner.stage,
        columns.partition == owner.partition,
    )


def _place(owner: Owner) -> ColumnElement[bool]:
    columns = POSITIONS.c
    return and_(
        columns.job == owner.job,
        columns.run == owner.run,
        columns.stage == owner.stage,
        columns.partition == owner.partition,
    )
