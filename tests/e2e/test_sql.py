"""A table that a run writes is equal to its reference, whatever is killed, and while the database goes away."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from pipeline.store.connection import connect
from tests.e2e.chaos import Run, Site, a_chance, moments, wait_until
from tests.postgres import PASSWORD, PostgresServer

KEYS, COUNT = 50, 2_000

FLOW = f"""from pipeline import Pipeline, read, write


def numbered():
    for number in range(1, {COUNT} + 1):
        for key in range({KEYS}):
            yield [f"k{{key}}", number]


def in_sequence(key, number, last):
    if number != (last or 0) + 1:
        raise ValueError(f"{{key}}: {{number}} came after {{last}}")
    return {{"number": number}}, number


flow = Pipeline("table")
keyed = flow.source(read.iterable(numbered), name="numbers").key_by(lambda pair: pair[0], name="by_key")
checked = keyed.map(lambda pair: pair[1], name="number").stateful_map(in_sequence, name="oracle")
checked.sink(write.sql(URL, "rows", create=True), name="rows")
checked.last(name="newest").sink(write.sql(URL, "lasts", key="key", mode="upsert", create=True), name="lasts")
"""

TAKEN = 2 * KEYS * COUNT
EXPECTED = [(f"k{key}", COUNT, COUNT, COUNT * (COUNT + 1) // 2) for key in range(KEYS)]
SUMS = "SELECT key, count(*), count(DISTINCT number), sum(number) FROM rows GROUP BY key"


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.close()


def test_kills_at_random_moments_leave_every_row_once_in_sqlite(site: Site) -> None:
    chance = a_chance()
    site.write(f"URL = 'sqlite:///rows.db'\n{FLOW}")
    run = site.start("flow.py", "--workers", "2")

    for moment in moments(chance, TAKEN, 5):
        run.wait_for_taken(moment)
        run.kill_one_of(chance, "w0", "w1", "leader")
    run.finish()

    with sqlite3.connect(run.folder / "rows.db") as connection:
        assert sorted(connection.execute(SUMS)) == sorted(EXPECTED)
        assert connection.execute("SELECT count(*), min(number) FROM lasts").fetchone() == (KEYS, COUNT)
    connection.close()
    assert f"  rows: {KEYS * COUNT:,} rows added in rows of sqlite:///{run.folder}/rows.db" in run.said()
    assert f"  lasts: {KEYS} rows replaced or added in lasts of" in run.said()
    site.assert_clean("flow.py", "rows.db")


def test_a_database_that_goes_and_comes_back_among_kills_holds_every_row_once_and_its_password_is_seen_nowhere(
    site: Site, own_postgres: PostgresServer, redis_url: str
) -> None:
    chance = a_chance()
    site.write(f"import os\nURL = os.environ['ORDERS_DB']\n{FLOW}")
    run = site.start("flow.py", "--workers", "2", "--redis", redis_url, ORDERS_DB=own_postgres.url)
    first, second, third = moments(chance, TAKEN, 3, (0.1, 0.5))

    run.wait_for_taken(first)
    run.kill("w0")
    run.wait_for_taken(second)
    own_postgres.stop()
    wait_until(lambda: "waiting: the database" in run.said(), "the run says what it waits for")
    run.kill("w1")
    assert_hidden(site, run, redis_url)
    own_postgres.start()
    run.wait_for_taken(third)
    run.kill_one_of(chance, "w0", "w1")
    run.finish()

    with psycopg.connect(own_postgres.url) as connection:
        assert sorted(connection.execute(SUMS)) == sorted(EXPECTED)
        assert connection.execute("SELECT count(*), min(number) FROM lasts").fetchone() == (KEYS, COUNT)
    assert "nothing is waited for any more" in run.said()
    assert_hidden(site, run, redis_url)
    site.assert_clean("flow.py")


def assert_hidden(site: Site, run: Run, redis_url: str) -> None:
    """The password is in no file that a run writes, no process list, and nowhere in Redis."""
    run.keep_logs()
    for path in [*run.logs.iterdir(), run.logs.with_suffix(".stderr")]:
        assert PASSWORD not in path.read_text(), path
    for process in site.processes():
        with suppress(psutil.Error):
            assert PASSWORD not in " ".join(process.cmdline())
    with connect(redis_url) as client:
        for key in client.keys("*"):
            assert PASSWORD.encode() not in client.dump(key), key


@pytest.mark.parametrize(
    ("url", "more", "error"),
    [
        (
            "'postgresql://u:s3cret-word@127.0.0.1:1/x'",
            "",
            "the database postgresql+psycopg://u:***@127.0.0.1:1/x is away",
        ),
        ("'env:NO_SUCH_VARIABLE'", "", "is in the variable NO_SUCH_VARIABLE, which is not set"),
        ("'mysql://u:s3cret-word@h/x'", "", "mysql is no database that can be written"),
        ("'sqlite:///rows.db'", "", "there is no table rows"),
        ("'sqlite:///rows.db'", "CREATE TABLE rows (a INTEGER)", "the table rows has no column 'key'"),
        ("'sqlite:///rows.db'", "CREATE TABLE rows (key TEXT)", "key is no key of the table rows"),
        ("'sqlite:///missing/rows.db'", "", "unable to open database file"),
    ],
)
def test_what_cannot_be_written_is_told_before_the_start(site: Site, url: str, more: str, error: str) -> None:
    mode = "upsert" if "key TEXT" in more else "insert"
    site.write(f"""from pipeline import Pipeline, read, write
flow = Pipeline("wrong")
keyed = flow.source(read.iterable(["a"]), name="in").key_by(str, name="by")
keyed.sink(write.sql({url}, "rows", key="key", mode="{mode}"), name="rows")
""")
    if more:
        with sqlite3.connect(Path(site.root / "work/rows.db")) as connection:
            connection.execute(more)
        connection.close()

    done = site.command("run", "flow.py", "--workers", "1")

    assert done.returncode in (1, 2, 3), done.stderr
    assert error in done.stderr
    assert "s3cret-word" not in done.stderr
    assert "Traceback" not in done.stderr
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] in (["error", "hint"], ["error"])
