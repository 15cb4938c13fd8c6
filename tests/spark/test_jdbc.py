"""read.jdbc: the rows of the table, copied once, whoever dies and whatever is changed; on Derby, which PySpark has.

What PostgreSQL and MariaDB have and Derby has not is read of one of these, with the drivers of Debian.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pipeline import Pipeline, read, write
from pipeline.errors import CeleriacError, EnvironmentFault, InputError
from pipeline.graph import SourceSpec
from pipeline.publishing import discard_job
from pipeline.sources import parquetrows
from pipeline.sources.runner import feed_source
from pipeline.sources.snapshots import owner_of
from pipeline.spark.bulk.engine import BulkOptions, BulkRun, run_bulk
from pipeline.spark.bulk.handover import positions
from pipeline.store.senders import FeedAddress
from tests import jvm
from tests.e2e.chaos import Site, read_rows, wait_until
from tests.mariadb import MariaDbServer
from tests.runtime.harness import LocalJob

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

pytestmark = pytest.mark.timeout(900)

SECONDS = 600.0
"""Spark's start takes its time on a busy machine."""

DRIVERS = Path("/usr/share/java")

STAGING = "a [1]{x}%20 ü"

CLOSED = "08006"
"""What Derby says when a database is closed as it was asked to."""


class Database:
    """A Derby database in a folder, opened in the JVM of the session of tests."""

    def __init__(self, spark: Any, path: Path) -> None:
        self.path, self._jvm = path, spark._jvm
        self._jvm.java.lang.System.setProperty("derby.stream.error.file", str(path.parent / "derby.log"))
        self._jvm.java.lang.Class.forName("org.apache.derby.jdbc.EmbeddedDriver")
        self.credentials = ""
        self._open()

    def _open(self) -> None:
        url = f"{self.url};create=true{self.credentials}"
        self._connection = self._jvm.java.sql.DriverManager.getConnection(url)

    @property
    def url(self) -> str:
        return f"jdbc:derby:{self.path}"

    def run(self, *statements: str) -> None:
        statement = self._connection.createStatement()
        for text in statements:
            statement.execute(text)

    def numbers(self, rows: int) -> None:
        """A table N of the numbers from 1 to a power of two."""
        self.run("CREATE TABLE N (ID INT PRIMARY KEY)", "INSERT INTO N VALUES 1")
        have = 1
        while have < rows:
            self.run(f"INSERT INTO N SELECT ID + {have} FROM N")
            have *= 2

    def close(self) -> None:
        """Another JVM may open it then."""
        from py4j.protocol import Py4JJavaError

        self._connection.close()
        with pytest.raises(Py4JJavaError) as caught:
            self._jvm.java.sql.DriverManager.getConnection(f"{self.url};shutdown=true{self.credentials}")
        assert caught.value.java_exception.getSQLState() == CLOSED

    def protect(self, user: str, password: str) -> None:
        """From now on nobody else gets in."""
        self.run(f"CALL SYSCS_UTIL.SYSCS_CREATE_USER('{user}', '{password}')")
        self.close()
        self.credentials = f";user={user};password={password}"
        self._open()


@pytest.fixture
def shop(spark: Any, tmp_path: Path) -> Iterator[Database]:
    database = Database(spark, tmp_path / "shop")
    yield database
    database.close()


@pytest.fixture
def feed(redis_url: str, tmp_path: Path) -> Callable[[SourceSpec], list[Any]]:
    """What a live job gets that reads the source."""

    def values(source: SourceSpec) -> list[Any]:
        flow = Pipeline("rows")
        flow.source(source, name="in").sink(write.stream("all"), name="all")
        with LocalJob(redis_url, flow) as job:
            job.assign()
            feed_source(source, FeedAddress(redis_url, job.job, "in"), owner=owner_of(job.job, "in"))
            job.end_input()
            job.run_until_idle()
            job.drain_outputs()
            discard_job(job.jobs.read(job.job))
            assert list((tmp_path / STAGING).iterdir()) == []
            return [value for _, value in job.outputs["all"]]

    return values


def in_bulk(spark: Any, source: SourceSpec, folder: Path) -> list[Any]:
    found: list[Any] = []
    flow = Pipeline("rows")
    flow.source(source, name="in").sink(write.stream("all"), name="all")
    run_bulk(flow, spark, BulkOptions(partitions=2, takers={"all": lambda batch: found.extend(batch.values)}))
    assert list((folder / STAGING).iterdir()) == []
    return found


COLUMNS = (
    "ID INT, PRICE DECIMAL(31,2), BORN DATE, SOLD TIMESTAMP, CLOCK TIME, RAW BLOB, BITS VARCHAR(9) FOR BIT DATA, "
    '"a.b `c;" CLOB, RATE DOUBLE, SMALL SMALLINT, BIG BIGINT, FLAG BOOLEAN, CODE CHAR(3)'
)
VALUES = (
    "1, 12345678901234567890123456789.50, '0001-02-03', '2500-03-29 02:30:00.123456', '12:13:14', "
    "CAST(X'00ff' AS BLOB), X'0102', 'ü', 1.5, 3, 9000000000, TRUE, 'ab'"
)
ROW = {
    "ID": 1,
    "PRICE": "12345678901234567890123456789.50",
    "BORN": "0001-02-03",
    "SOLD": datetime(2500, 3, 29, 2, 30, 0, 123456, UTC),
    "CLOCK": "12:13:14",
    "RAW": b"\x00\xff",
    "BITS": b"\x01\x02",
    "a.b `c;": "ü",
    "RATE": 1.5,
    "SMALL": 3,
    "BIG": 9_000_000_000,
    "FLAG": True,
    "CODE": "ab ",
}


def test_every_type_has_its_form_in_a_record_live_and_in_bulk(
    spark: Any, shop: Database, feed: Callable[[SourceSpec], list[Any]], tmp_path: Path
) -> None:
    shop.run(f"CREATE TABLE T ({COLUMNS})", f"INSERT INTO T VALUES ({VALUES})", "INSERT INTO T (ID) VALUES (2)")
    source = read.jdbc(shop.url, "T", staging=tmp_path / STAGING)

    expected = [ROW, {**dict.fromkeys(ROW), "ID": 2}]
    assert sorted(feed(source), key=lambda row: row["ID"]) == expected
    assert sorted(in_bulk(spark, source, tmp_path), key=lambda row: row["ID"]) == expected


def test_a_query_in_parts_gives_each_row_once_also_those_beyond_the_bounds(
    shop: Database, feed: Callable[[SourceSpec], list[Any]], tmp_path: Path
) -> None:
    shop.numbers(4_096)
    source = read.jdbc(
        shop.url,
        "SELECT ID FROM N WHERE ID <> 7;",
        staging=tmp_path / STAGING,
        partition_column="ID",
        lower=1_000,
        upper=2_000,
        partitions=3,
    )

    assert sorted(row["ID"] for row in feed(source)) == [n for n in range(1, 4_097) if n != 7]


def test_a_table_without_rows_is_a_source_without_records(
    spark: Any, shop: Database, feed: Callable[[SourceSpec], list[Any]], tmp_path: Path
) -> None:
    shop.run("CREATE TABLE T (ID INT)")
    source = read.jdbc(shop.url, "T", staging=tmp_path / STAGING)

    assert feed(source) == in_bulk(spark, source, tmp_path) == []


def add_driver(spark: Any, jar: str, package: str) -> None:
    assert (DRIVERS / jar).exists(), f"apt-get install {package}"
    spark.sql(f"ADD JAR '{DRIVERS / jar}'")


def a_table_of(types: list[tuple[str, str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """Of types, each with what is written and what is in the record: what makes the table `t`, and its records.

    The second one has NULL in all columns but `id`.
    """
    columns = ", ".join(f"c{place} {kind}" for place, (kind, _, _) in enumerate(types))
    values = ", ".join(written for _, written, _ in types)
    row = {"id": 1} | {f"c{place}": value for place, (_, _, value) in enumerate(types)}
    statements = [f"CREATE TABLE t (id int, {columns})", f"INSERT INTO t VALUES (1, {values})"]
    return [*statements, "INSERT INTO t (id) VALUES (2)"], [row, {**dict.fromkeys(row), "id": 2}]


# --- PostgreSQL

PASSWORD = "s3cret"


@pytest.fixture
def postgres(spark: Any, postgres_server: PostgresServer, postgres_url: str) -> Iterator[Callable[..., SourceSpec]]:
    """Makes a source of a table or query of an empty database, after some statements."""
    add_driver(spark, "postgresql.jar", "libpostgresql-jdbc-java")
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("SET scram_iterations = 4096")  # the least that Java takes; the server's own has one
        admin.execute(f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{PASSWORD}'")

        def source(table: str, staging: Path, *statements: str, password: str = PASSWORD, **options: Any) -> SourceSpec:
            for statement in statements:
                admin.execute(statement)
            return read.jdbc(
                f"jdbc:postgresql://127.0.0.1:{postgres_server.port}/{name}",
                table,
                staging=staging / STAGING,
                driver="org.postgresql.Driver",
                properties={"user": name, "password": password},
                **options,
            )

        yield source
    postgres_server.execute(f"DROP ROLE {name}")


POSTGRES_TYPES = [
    ("smallint", "3", 3),
    ("bigint", "9000000000", 9_000_000_000),
    ("numeric(31, 2)", "12345678901234567890123456789.50", "12345678901234567890123456789.50"),
    ("numeric", "1.5", "1.500000000000000000"),
    ("real", "1.5", 1.5),
    ("boolean", "true", True),
    ("text", "'ü'", "ü"),
    ("char(3)", "'ab'", "ab "),
    ("bytea", r"'\x00ff'", b"\x00\xff"),
    ("date", "'0001-02-03'", "0001-02-03"),
    ("timestamp", "'2500-03-29 02:30:00.123456'", datetime(2500, 3, 29, 2, 30, 0, 123456, UTC)),
    ("timestamp", "'0001-01-01 00:00:00'", datetime(1, 1, 1, tzinfo=UTC)),
    ("timestamptz", "'2025-03-30 02:30:00.123456+02'", datetime(2025, 3, 30, 0, 30, 0, 123456, UTC)),
    ("timestamptz", "'infinity'", datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)),
    ("timestamp", "'infinity'", datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)),
    ("time", "'12:13:14'", "12:13:14"),
    ("time with time zone", "'12:13:14.5+02'", "10:13:14.500000"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("jsonb", """'{"a": 1}'""", '{"a": 1}'),
    ("interval", "'1 day 02:00:00'", "1 day 02:00:00"),
    ("inet", "'10.0.0.1'", "10.0.0.1"),
    ("int[]", "'{1, 2, NULL}'", [1, 2, None]),
    ("text[]", "'{a, NULL}'", ["a", None]),
    ("timestamptz[]", "'{2020-01-01 00:00:00+00}'", [datetime(2020, 1, 1, tzinfo=UTC)]),
    ("numeric(10, 2)[]", "'{1.50}'", ["1.50"]),
    ("mood", "'ok'", "ok"),
]


def test_every_type_of_postgresql_has_its_form_in_a_record_live_and_in_bulk(
    spark: Any, postgres: Callable[..., SourceSpec], feed: Callable[[SourceSpec], list[Any]], tmp_path: Path
) -> None:
    statements, expected = a_table_of(POSTGRES_TYPES)
    source = postgres("t", tmp_path, "CREATE TYPE mood AS ENUM ('sad', 'ok')", *statements)

    assert sorted(feed(source), key=lambda each: each["id"]) == expected
    assert sorted(in_bulk(spark, source, tmp_path), key=lambda each: each["id"]) == expected


def test_a_time_before_the_first_year_is_a_dead_letter_and_not_another_time(
    spark: Any, postgres: Callable[..., SourceSpec], tmp_path: Path
) -> None:
    source = postgres("SELECT '0044-03-15 12:00 BC'::timestamp AS ides UNION SELECT '2024-03-15'", tmp_path)
    flow = Pipeline("rows")
    flow.source(source, name="in").sink(write.jsonl(tmp_path / "out"), name="all")

    result = run_bulk(flow, spark)

    (letter,) = result.letters
    assert "column 'ides': a date or time outside of the years 1 to 9999" in letter.error


def test_ranges_of_a_column_of_times_give_each_row_once(
    postgres: Callable[..., SourceSpec], feed: Callable[[SourceSpec], list[Any]], tmp_path: Path
) -> None:
    source = postgres(
        "n",
        tmp_path,
        "CREATE TABLE n AS SELECT id, timestamptz '2026-01-01 00:00+00' + id * interval '1 hour' AS placed"
        " FROM generate_series(1, 4096) AS id",
        "UPDATE n SET placed = NULL WHERE id = 7",
        partition_column="placed",
        lower="2026-02-01 00:00:00",
        upper="2026-03-01",
        partitions=3,
    )

    assert sorted(row["id"] for row in feed(source)) == list(range(1, 4_097))


def test_what_postgresql_refuses_is_told_in_its_words(postgres: Callable[..., SourceSpec], tmp_path: Path) -> None:
    def said(table: str, **options: str) -> str:
        error = refused(postgres(table, tmp_path, **options), tmp_path)
        assert isinstance(error, InputError)
        return str(error)

    assert "password authentication failed for user" in said("t", password="s3cret-wrong")
    assert 'relation "nope" does not exist' in said("nope")
    assert "division by zero" in said("SELECT 1 / 0 AS x")


# --- MariaDB

MARIADB_TYPES = [
    ("tinyint unsigned", "255", 255),
    ("bigint unsigned", "18446744073709551615", "18446744073709551615"),
    ("decimal(38, 10)", "123.45", "123.4500000000"),
    ("boolean", "true", True),
    ("float", "1.5", 1.5),
    ("date", "'2024-01-02'", "2024-01-02"),
    ("datetime(6)", "'2024-03-31 02:30:00.123456'", datetime(2024, 3, 31, 2, 30, 0, 123456, UTC)),
    ("time(6)", "'12:13:14.5'", "12:13:14.500000"),
    ("varchar(9)", "'ü'", "ü"),
    ("enum('a', 'b')", "'a'", "a"),
    ("json", """'{"a": 1}'""", '{"a": 1}'),
    ("blob", "x'00ff'", b"\x00\xff"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
]


@pytest.fixture
def mariadb(spark: Any, tmp_path: Path) -> Iterator[Callable[..., SourceSpec]]:
    """Makes a source of a table, after some statements."""
    add_driver(spark, "mariadb-java-client.jar", "libmariadb-java")
    jvm, name, server = spark._jvm, "org.mariadb.jdbc.Driver", MariaDbServer()
    driver = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name).newInstance()

    def source(address: str, table: str, *statements: str) -> SourceSpec:
        connection = driver.connect(f"jdbc:mariadb://127.0.0.1:{server.port}/shop", jvm.java.util.Properties())
        for statement in statements:
            connection.createStatement().execute(statement)
        connection.close()
        url = address.format(f"127.0.0.1:{server.port}/shop")
        return read.jdbc(url, table, staging=tmp_path / STAGING, driver=name)

    yield source
    server.close()


def test_every_type_of_mariadb_has_its_form_in_a_record_live_and_in_bulk(
    spark: Any, mariadb: Callable[..., SourceSpec], feed: Callable[[SourceSpec], list[Any]], tmp_path: Path
) -> None:
    statements, expected = a_table_of(MARIADB_TYPES)
    source = mariadb("jdbc:mysql://{}?permitMysqlScheme", "t", *statements)

    assert sorted(feed(source), key=lambda each: each["id"]) == expected
    assert sorted(in_bulk(spark, source, tmp_path), key=lambda each: each["id"]) == expected


def test_a_database_that_would_give_the_names_of_columns_as_values_is_refused(
    spark: Any, mariadb: Callable[..., SourceSpec], tmp_path: Path
) -> None:
    table = "SELECT word FROM t WHERE word <> 'b'"
    source = mariadb("jdbc:mariadb://{}", table, "CREATE TABLE t (word text)", "INSERT INTO t VALUES ('a'), ('b')")
    quoting = mariadb("jdbc:mariadb://{}?sessionVariables=sql_mode=ANSI_QUOTES", table)

    error = refused(source, tmp_path)

    assert isinstance(error, InputError)
    assert 'takes "names" in double quotes for texts' in str(error)
    assert "jdbc:mysql://host/name?permitMysqlScheme" in error.hint
    assert in_bulk(spark, quoting, tmp_path) == [{"word": "a"}]
    missing = str(refused(mariadb("jdbc:mariadb://{}", "nope"), tmp_path))
    assert "nope' doesn't exist" in missing


# --- deaths


class _Killed(BaseException):
    """Nothing of ours catches it."""


def test_a_feeder_that_dies_while_it_copies_or_reads_is_followed_by_one_that_reads_the_same_rows(
    redis_url: str, shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.numbers(1_024)
    source = read.jdbc(
        shop.url, "N", staging=tmp_path / STAGING, partition_column="ID", lower=1, upper=1_024, partitions=3
    )
    flow = Pipeline("rows")
    flow.source(source, name="in").sink(write.stream("all"), name="all")
    whole, splits = parquetrows.split_rows, count()

    def dies_at_the_second(*args: Any) -> Any:
        if next(splits) == 1:
            raise _Killed
        return whole(*args)

    def dies(*_args: Any) -> None:
        raise _Killed

    with LocalJob(redis_url, flow) as job:
        job.assign()
        address, owner = FeedAddress(redis_url, job.job, "in"), owner_of(job.job, "in")
        moments = {
            "pipeline.sources.snapshots._make_lasting": dies,
            "pipeline.sources.parquetrows.split_rows": dies_at_the_second,
        }
        for place, deadly in moments.items():
            with monkeypatch.context() as context:
                context.setattr(place, deadly)
                with pytest.raises(_Killed):
                    feed_source(source, address, owner=owner)
        copies = sorted((tmp_path / STAGING / owner).iterdir())
        shop.run("DELETE FROM N WHERE ID > 100", "UPDATE N SET ID = -ID")
        feed_source(source, address, owner=owner)
        feed_source(source, address, owner=owner)
        job.end_input()
        job.run_until_idle()
        job.drain_outputs()

        assert sorted(value["ID"] for _, value in job.outputs["all"]) == list(range(1, 1_025))
        assert sorted((tmp_path / STAGING / owner).iterdir()) == copies
        assert len(copies) == 2  # one, and the lock


FLOW = """
from pathlib import Path
from threading import Event

from pipeline import Pipeline, read, write


def waiting(row):
    while row["ID"] > 12_000 and not Path("go").exists():
        Event().wait(0.05)
    return row["ID"]


flow = Pipeline("rows")
rows = flow.source(read.jdbc("env:SHOP", "N", staging="staging", properties={{"password": "env:WORD"}}), name="rows")
rows.map(waiting, name="wait").sink(write.jsonl("out"), name="out")
"""


def test_a_job_whose_feeder_is_killed_needs_the_database_no_more(spark: Any, site: Site) -> None:
    database = Database(spark, site.root / "shop")
    database.numbers(65_536)  # more than the inbox of one split holds
    database.close()
    site.write(FLOW.format())
    secrets = {"SHOP": f"{database.url};password=s3cret1", "WORD": "s3cret2"}
    run = site.start("flow.py", "--workers", "1", **jvm.FAST, **secrets)
    wait_until(lambda: run.taken() >= 1_000, "1,000 records are taken", SECONDS)
    staging = run.folder / "staging"
    (owner,) = staging.iterdir()
    (copy,) = (path for path in owner.iterdir() if path.is_dir())
    commands = [word for process in site.processes() for word in process.cmdline()]
    assert not run.facts().record.completed_sources
    shutil.rmtree(database.path)

    run.kill("source")
    assert copy.is_dir()
    (run.folder / "go").touch()
    run.finish(seconds=SECONDS)

    assert sorted(read_rows(run.folder / "out")) == list(range(1, 65_537))
    assert not any("s3cret" in word for word in commands)
    assert "copying N of jdbc:derby:" in run.log("source0")
    assert "s3cret" not in run.said() + run.log("source0")
    assert list(staging.iterdir()) == []


def test_a_savepoint_of_a_run_in_bulk_names_its_copy_which_stays_for_the_live_job(
    spark: Any, shop: Database, tmp_path: Path
) -> None:
    shop.numbers(512)
    flow = Pipeline("rows")
    flow.source(read.jdbc(shop.url, "N", staging=tmp_path / STAGING), name="in").sink(write.stream("all"), name="all")
    told: list[Any] = []
    takers = {"all": lambda batch: told.extend(row["ID"] for row in batch.values)}

    with BulkRun(flow, BulkOptions(partitions=2, keeps_state=True, ends_input=False, takers=takers)) as run:
        run.prepare()
        run.compute(spark)
        run.publish()
        given = positions(run)["in"]
        run.keeps_copies = True
    shop.run("DELETE FROM N")
    (split,) = (name for name in given if not name.startswith("~"))
    rest = {name: (200 if name == split else 0, None) for name in given}
    with BulkRun(flow, BulkOptions(partitions=2, ranges={"in": rest}, takers=takers)) as run:
        run.prepare()
        run.compute(spark)
        run.publish()

    assert given[split] == 512
    assert sorted(told) == sorted([*range(1, 513), *range(201, 513)])


# --- refusals


def refused(source: SourceSpec, folder: Path) -> CeleriacError:
    """The error of a run in bulk, which shows nothing secret and leaves nothing behind."""
    flow = Pipeline("rows")
    flow.source(source, name="in").sink(write.jsonl(folder / "out"), name="out")
    with pytest.raises(CeleriacError) as caught:
        run_bulk(flow)
    assert list((folder / STAGING).iterdir()) == []
    shown = "".join(map(str, (caught.getrepr(chain=True), caught.value.hint)))
    assert "s3cret" not in shown.replace(repr(source), "")
    return caught.value


def test_what_the_database_refuses_is_told_in_its_words(shop: Database, tmp_path: Path) -> None:
    shop.run(
        "CREATE TYPE LIST EXTERNAL NAME 'java.util.ArrayList' LANGUAGE JAVA", "CREATE TABLE T (ID INT, THINGS LIST)"
    )
    shop.protect("app", "right")
    right = {"user": "app", "password": "right"}

    def said(table: str, **properties: str) -> str:
        source = read.jdbc(shop.url, table, staging=tmp_path / STAGING, properties={**right, **properties})
        error = refused(source, tmp_path)
        assert isinstance(error, InputError)
        return str(error)

    assert f"{shop.url} cannot be read (NOPE): Table/View 'NOPE' does not exist" in said("NOPE")
    assert "Invalid authentication" in said("T", password="s3cret")
    assert "Attempt to divide by zero" in said("SELECT 1/0 AS X FROM SYSIBM.SYSDUMMY1")
    assert """the column 'THINGS' is of the type "APP"."LIST", which no record can hold""" in said("T")


@pytest.mark.parametrize("driver", [None, "com.mysql.cj.jdbc.Driver"])
@pytest.mark.usefixtures("spark")
def test_a_driver_that_is_missing_is_named_with_what_to_do(driver: str | None, tmp_path: Path) -> None:
    url = "jdbc:mysql://shop:s3cret@127.0.0.1:1/shop"
    source = read.jdbc(url, "t", staging=tmp_path / STAGING, driver=driver, properties={"password": "s3cret"})

    error = refused(source, tmp_path)

    assert isinstance(error, EnvironmentFault)
    assert "Spark has no JDBC driver for jdbc:mysql://127.0.0.1:1/shop" in str(error)
    assert "--conf spark.jars=/path/driver.jar" in error.hint


def test_times_are_refused_where_java_would_shift_them(
    spark: Any, shop: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop.run("CREATE TABLE T (SOLD TIMESTAMP)")
    zones = spark._jvm.java.util.TimeZone
    before = zones.getDefault()
    assert before.getID() == "UTC"
    zones.setDefault(zones.getTimeZone("America/New_York"))
    try:
        with caplog.at_level(logging.INFO):
            error = refused(read.jdbc(shop.url, "T", staging=tmp_path / STAGING), tmp_path)
    finally:
        zones.setDefault(before)

    assert "Spark's Java has the time zone America/New_York" in str(error)
    assert f"copying T of {shop.url}" in caplog.text
    assert json.dumps("-Duser.timezone=UTC").strip('"') in error.hint
