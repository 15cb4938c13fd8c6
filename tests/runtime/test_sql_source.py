"""Rows of a database as a source, on SQLite and PostgreSQL: each once and in order, whoever dies or goes away."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import read
from pipeline.errors import EnvironmentFault, InputError, PipelineError
from pipeline.plan import compile_plan
from pipeline.settings import Limits
from pipeline.sinks.secrets import normal_database
from pipeline.sources.opening import open_source
from tests.postgres import PASSWORD, PostgresServer
from tests.runtime.followed import Follow


class Database:
    """The other side: makes the table and writes rows."""

    def __init__(self, url: str) -> None:
        self.engine = sa.create_engine(normal_database(url, "test"), poolclass=sa.NullPool)

    def run(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def add(self, first: int, last: int) -> None:
        with self.engine.begin() as connection:
            rows = [{"id": number, "name": f"n{number}"} for number in range(first, last + 1)]
            connection.execute(sa.text("INSERT INTO orders (id, name) VALUES (:id, :name)"), rows)


@pytest.fixture
def database(database_url: str) -> Database:
    made = Database(database_url)
    made.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
    return made


def ids(one: Follow) -> list[int]:
    return [row["id"] for row in one.values()]


def test_rows_come_as_dicts_once_and_in_the_order_of_the_column(
    follow: Callable[..., Follow], database: Database, database_url: str
) -> None:
    database.add(3, 4)
    database.add(1, 2)
    one = follow(read.sql(database_url, "orders", column="id"))
    one.rounds(3)
    database.add(5, 6)
    one.start()
    one.rounds(3)

    assert one.values() == [{"id": number, "name": f"n{number}"} for number in range(1, 7)]


def test_a_large_table_is_read_in_bounded_pieces(
    follow: Callable[..., Follow], database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.sources.sqlrows.BATCH_RECORDS", 100)
    database.add(1, 1_000)
    one = follow(read.sql(database_url, "orders", column="id"))
    source = open_source(one.spec, one.feed())
    reader = source.look(1)[0].open(None)

    assert [len(reader.read().batch) for _ in range(3)] == [100, 100, 100]
    reader.close()
    source.close()
    one.until(lambda: len(one.values()) == 1_000)
    assert ids(one) == list(range(1, 1_001))


def test_large_rows_end_a_piece_by_their_bytes(
    follow: Callable[..., Follow], database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.sources.sqlrows.BATCH_BYTES", 2_500)
    monkeypatch.setattr("pipeline.sources.sqlrows.FIRST_ROWS", 4)
    with database.engine.begin() as connection:
        rows = [{"id": number, "name": "x" * 1_000} for number in range(1, 11)]
        connection.execute(sa.text("INSERT INTO orders (id, name) VALUES (:id, :name)"), rows)
    one = follow(read.sql(database_url, "orders", column="id"))
    source = open_source(one.spec, one.feed())
    reader = source.look(1)[0].open(None)

    assert [len(reader.read().batch) for _ in range(6)] == [4, 2, 2, 2, 0, 0]
    reader.close()
    source.close()


def test_a_query_is_read_like_a_table(follow: Callable[..., Follow], database: Database, database_url: str) -> None:
    database.add(1, 10)
    query = "SELECT id, 'a :b %' AS mark FROM orders WHERE id > 7;"
    one = follow(read.sql(database_url, query, column="id"))
    one.rounds(3)
    database.add(11, 11)
    one.rounds(3)

    assert one.values() == [{"id": number, "mark": "a :b %"} for number in (8, 9, 10, 11)]


def test_two_columns_together_lose_no_row_of_an_equal_time(
    follow: Callable[..., Follow], database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.sources.sqlrows.BATCH_RECORDS", 2)
    database.run("CREATE TABLE changes (id INTEGER PRIMARY KEY, at TIMESTAMP)")
    moment = "'2024-01-01 00:00:00'"
    database.run(f"INSERT INTO changes VALUES (1, {moment}), (2, {moment}), (3, {moment}), (4, NULL)")
    one = follow(read.sql(database_url, "changes", column=["at", "id"]))
    one.rounds(4)
    database.run(f"INSERT INTO changes VALUES (5, {moment}), (6, '2024-01-02 00:00:00')")
    one.start()
    one.rounds(4)

    assert ids(one) == [1, 2, 3, 5, 6]


@pytest.mark.parametrize(
    ("table", "column", "words", "hint"),
    [
        ("order", "id", "there is no table 'order'", "did you mean 'orders'?"),
        ("orders", "ident", "the table 'orders' has no column 'ident'", "id"),
        ("orders", "name", "does not say that name is unique", "column=['name', 'id']"),
        ("SELECT id FROM orders", "name", "name", ""),
        ("SELECT id FORM orders", "id", "refuses 'SELECT id FORM orders'", "check the query"),
    ],
)
def test_what_can_never_be_read_ends_the_job_with_a_hint(
    follow: Callable[..., Follow],
    database: Database,
    database_url: str,
    table: str,
    column: str,
    words: str,
    hint: str,
) -> None:
    database.add(1, 1)

    with pytest.raises(InputError, match=words.replace("(", "[(]")) as caught:
        follow(read.sql(database_url, table, column=column)).start().run()

    assert hint in caught.value.hint


def test_a_missing_file_of_sqlite_is_waited_for_and_not_made(
    follow: Callable[..., Follow], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/later.db"
    one = follow(read.sql(url, "orders", column="id"))
    one.rounds(3)
    assert "later.db (it is read as soon as it is there)" in caplog.text
    assert not (tmp_path / "later.db").exists()

    database = Database(url)
    database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
    database.add(1, 2)

    one.until(lambda: ids(one) == [1, 2])


def test_a_locked_sqlite_is_waited_for(
    follow: Callable[..., Follow], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    database = Database(url)
    database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
    one = follow(read.sql(f"{url}?timeout=0.01", "orders", column="id"))
    with database.engine.connect() as writer:
        writer.exec_driver_sql("BEGIN EXCLUSIVE")
        one.rounds(2)
        assert "database is locked" in caplog.text
    database.add(1, 1)

    one.until(lambda: ids(one) == [1])


def test_a_postgresql_that_goes_away_and_comes_back_is_read_on(
    follow: Callable[..., Follow], postgres_server: PostgresServer, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    database = Database(postgres_url)
    database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
    database.add(1, 2)
    one = follow(read.sql(postgres_url, "orders", column="id"))
    one.rounds(3)

    postgres_server.stop()
    one.rounds(5)
    assert "waiting for rows: the database postgresql" in caplog.text
    postgres_server.start()
    database.add(3, 4)

    one.until(lambda: len(one.values()) == 4)
    assert ids(one) == [1, 2, 3, 4]
    assert PASSWORD not in caplog.text
    with_wrong = follow(read.sql(postgres_url.replace(PASSWORD, "wr0ng"), "orders", column="id"), job="k")
    with pytest.raises(InputError, match="password authentication failed") as caught:
        with_wrong.start().run()
    assert "wr0ng" not in str(caught.value) + caught.value.hint
    no_database = follow(read.sql(postgres_server.database("nowhere"), "orders", column="id"), job="l")
    with pytest.raises(InputError, match='database "nowhere" does not exist'):
        no_database.start().run()


def test_types_of_postgresql_become_plain_values_and_positions_keep_theirs(
    follow: Callable[..., Follow], postgres_url: str
) -> None:
    database = Database(postgres_url)
    database.run(
        "CREATE TABLE kinds (n NUMERIC(20, 2) PRIMARY KEY, at TIMESTAMPTZ, day DATE, spent INTERVAL, u UUID, "
        "raw BYTEA, doc JSONB, tags TEXT[], rate NUMERIC(18, 8))",
        "INSERT INTO kinds VALUES (0.10, '2024-01-01 12:00:00+02', '2024-01-02', '90 seconds', "
        "'00000000-0000-0000-0000-000000000001', 'ab', '{\"a\": [1, null]}', '{x,y}', 0)",
    )
    one = follow(read.sql(postgres_url, "kinds", column="n"))
    one.rounds(3)
    database.run("INSERT INTO kinds (n) VALUES (0.2), (0.05)")
    one.start()
    one.rounds(3)

    first, second = one.values()
    assert first == {
        "n": "0.10",
        "at": datetime(2024, 1, 1, 10, tzinfo=UTC),
        "day": "2024-01-02",
        "spent": "0:01:30",
        "u": "00000000-0000-0000-0000-000000000001",
        "raw": b"ab",
        "doc": {"a": [1, None]},
        "tags": ["x", "y"],
        "rate": "0.00000000",
    }
    assert second["n"] == "0.20"


@pytest.mark.parametrize("kind", ["TIMESTAMPTZ", "DATE", "UUID", "BYTEA", "DOUBLE PRECISION", "TEXT"])
def test_every_kind_of_column_that_grows_can_be_read_on_from(
    follow: Callable[..., Follow], postgres_url: str, kind: str
) -> None:
    values = {
        "TIMESTAMPTZ": ["2024-01-01 00:00:00.000001+00", "2024-01-01 00:00:00.000002+00"],
        "DATE": ["2024-01-01", "2024-01-02"],
        "UUID": ["00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"],
        "BYTEA": ["a", "b"],
        "DOUBLE PRECISION": ["0.1", "0.30000000000000004"],
        "TEXT": ["a", "a'b"],
    }[kind]
    database = Database(postgres_url)
    database.run(f"CREATE TABLE t (c {kind} PRIMARY KEY)")
    one = follow(read.sql(postgres_url, "t", column="c"))
    for value in values:
        with database.engine.begin() as connection:
            connection.execute(
                sa.text(f"INSERT INTO t VALUES (CAST(:v AS {kind}))"),
                {"v": value.encode() if kind == "BYTEA" else value},
            )
        one.start()
        one.rounds(3)

    assert len(one.values()) == 2


def test_the_password_is_neither_in_the_plan_nor_in_a_repr(follow: Callable[..., Follow], redis_url: str) -> None:
    assert redis_url
    spec = read.sql("postgresql://me:s3cret@db/shop?password=also", "orders", column="id")
    one = follow(spec)

    plan = compile_plan(one.job.graph, 1, Limits()).encode()

    assert b"s3cret" not in plan
    assert b"also" not in plan
    assert "s3cret" not in repr(spec)


def test_the_address_comes_from_the_variable_of_the_process_that_reads(
    follow: Callable[..., Follow], database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.add(1, 1)
    one = follow(read.sql("env:THEIR_DB", "orders", column="id"))
    with pytest.raises(EnvironmentFault, match="THEIR_DB, which is not set"):
        one.start()

    monkeypatch.setenv("THEIR_DB", database_url)
    monkeypatch.setattr("pipeline.sinks.secrets.value_of.__defaults__", ({"THEIR_DB": database_url},))

    one.until(lambda: ids(one) == [1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: read.sql("orders.db", "t", column="id"), "the address has no scheme"),
        (lambda: read.sql("sqlite:///x.db", "", column="id"), "table must be text"),
        (lambda: read.sql("sqlite:///x.db", "t", column=""), "column must name one or more columns"),
        (lambda: read.sql("sqlite:///x.db", "t", column=[]), "columns must name one or more columns"),
        (lambda: read.sql("sqlite:///x.db", "t", column="id", poll_seconds=0), "poll_seconds must be a number"),
    ],
)
def test_a_bad_argument_is_named(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(PipelineError, match=f"read.sql: .*{words}"):
        call()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=st.lists(st.sampled_from(["add", "many", "kill", "before", "after", "round"]), max_size=25))
def test_whatever_dies_each_row_comes_once_and_in_order(
    redis_url: str, tmp_path_factory: pytest.TempPathFactory, operations: list[str]
) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('db')}/x.db"
    database = Database(url)
    database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
    one = Follow(redis_url, read.sql(url, "orders", column="id"), limits=Limits(inbox_records=64), fresh=True)
    count = 0
    for operation in [*operations, "add"]:
        match operation:
            case "add" | "many":
                more = 1 if operation == "add" else 150
                database.add(count + 1, count + more)
                count += more
            case "kill":
                one.start()
            case "round":
                one.rounds(2)
            case "before" | "after" as moment:
                one.scripts.break_call(moment, 2)
    one.scripts.faults.clear()
    one.until(lambda: len(one.values()) >= count)
    one.rounds(3)

    assert ids(one) == list(range(1, count + 1))
    one.close()
