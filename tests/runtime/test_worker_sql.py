"""Rows in a database are those of plain Python, each once, through lost replies, deaths, zombies and bad rows."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from pipeline import Pipeline, read, write
from pipeline.errors import SinkAway, SinkError, StoreUnavailable
from pipeline.lifecycle import JobState
from pipeline.plan import SinkPlan
from pipeline.positions import START, Position
from pipeline.publishing import check_effects
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.sinks.effects import Owner
from pipeline.sinks.publisher import publish
from pipeline.sinks.secrets import normal_database
from pipeline.sinks.sql_database import Database
from pipeline.sinks.sql_sink import open_database, sql_effect
from pipeline.sinks.sql_table import SqlTable
from pipeline.sinks.staging import StagedFacts
from stages.partition import SliceEnd
from tests.e2e.chaos import wait_until
from tests.runtime.harness import LocalJob, Moment, SteppingClock, numbered
from tests.runtime.tables import KEYS, ask, look_again, make_rows
from tests.sampling import calls, some


def rows_pipeline(url: str, **options: Any) -> Pipeline:
    """[key, number] -> a row (key, value) of the table `rows`."""
    flow = Pipeline("rows")
    keyed = flow.source(read.iterable([0]), name="in").key_by(lambda pair: pair[0], name="by")
    keyed.map(lambda pair: pair[1], name="number").sink(write.sql(url, "rows", **options), name="rows")
    return flow


def feed(job: LocalJob) -> None:
    for number in range(3):
        job.send(numbered(KEYS, 4, first=4 * number + 1))
        job.run_and_sweep()


EXPECTED = sorted((key, number) for key, number in numbered(KEYS, 12))


def test_workers_that_make_one_table_at_once_lose_no_row(postgres_url: str) -> None:
    url = postgres_url.replace("postgresql://", "postgresql+psycopg://")
    table = SqlTable(SinkPlan("rows", "sql", "", {"table": "made", "create": True}, None))
    other = SqlTable(SinkPlan("rows", "sql", "", {"table": "made", "create": True}, None))
    first, second = Database(url), Database(url)

    def write_second() -> None:
        connection = second.begin()
        with second.faults():
            other.write(connection, [{"n": 2}])
        second.commit()

    with ThreadPoolExecutor(1) as pool:
        table.write(first.begin(), [{"n": 1}])
        writing = pool.submit(write_second)
        wait_until(lambda: ask(url, WAITING_FOR_A_LOCK) == [(1,)], "the second waits for the first")
        first.commit()
        writing.result(30)

    assert sorted(ask(url, "SELECT n FROM made")) == [(1,), (2,)]
    for database in (first, second):
        database.drop()


WAITING_FOR_A_LOCK = "SELECT count(*) FROM pg_locks WHERE NOT granted"


@pytest.mark.sampled
@pytest.mark.parametrize("moment", ["before", "after"])
def test_rows_are_exact_when_any_request_or_reply_is_lost(redis_url: str, database_url: str, moment: Moment) -> None:
    make_rows(database_url)
    for at in calls():
        ask(database_url, "DELETE FROM rows")
        with LocalJob(redis_url, rows_pipeline(database_url), partitions=1, job=f"j{at}") as job:
            job.worker()
            job.scripts["w0"].break_call(moment, at)
            look_again(job)
            job.assign(is_told=False)
            feed(job)
            job.end_input()
            job.run_and_sweep()
            total = len(job.scripts["w0"].calls)

            assert sorted(ask(database_url, "SELECT key, value FROM rows")) == EXPECTED
            assert job.letters() == []
            job.assert_done()
            job.client.flushdb()
        if at > total:
            break
    assert at > 12


@pytest.mark.sampled
@pytest.mark.parametrize("seed", some(range(6)))
def test_the_table_is_exact_through_random_deaths_takeovers_and_faults(
    redis_url: str, database_url: str, seed: int
) -> None:
    rng = random.Random(seed)
    make_rows(database_url)
    limits = Limits(step_records=rng.choice([3, 50, 8000]))
    with LocalJob(redis_url, rows_pipeline(database_url), limits=limits, clock=SteppingClock(0.001)) as job:
        for place in job.places:
            job.assign(rng.choice(["w0", "w1"]), [place])
        for number in range(1, 41):
            # A worker that dies when its word "this record is through" was lost seems to be killed by the record.
            for scripts in job.scripts.values():
                scripts.spared = frozenset({"trying", "load"})
            job.send(numbered(KEYS, 1, first=number), entry_records=rng.choice([1, 2, 3]))
            disturb(job, rng)
        for scripts in job.scripts.values():
            scripts.faults.clear()
        job.run_and_sweep()
        job.end_input()
        job.run_and_sweep()

        assert sorted(ask(database_url, "SELECT key, value FROM rows")) == sorted(map(tuple, numbered(KEYS, 40)))
        assert job.letters() == []
        job.assert_done()


def disturb(job: LocalJob, rng: random.Random) -> None:
    name = rng.choice(list(job.workers))
    with suppress(StoreUnavailable):  # injected: whoever looks at the table tries again
        match rng.choice(["serve", "serve", "fault", "fault", "restart", "take over", "look", "sweep", "nothing"]):
            case "serve":
                job.serve()
            case "fault":
                job.scripts[name].break_call(rng.choice(["before", "after"]), rng.randint(1, 3))
                job.serve()
            case "restart":
                job.restart(name)
            case "take over":
                job.assign(name, [rng.choice(job.places)], is_told=rng.random() < 0.5)
            case "look":
                job.look()
            case "sweep":
                job.sweep()


def last_pipeline(url: str) -> Pipeline:
    """The last value of each key, by timers that fire at the end."""
    flow = Pipeline("lasts")
    keyed = flow.source(read.iterable([0]), name="in").key_by(lambda pair: pair[0], name="by")
    keyed.map(lambda pair: {"n": pair[1]}, name="n").last(name="last").sink(write.sql(url, "rows"), name="rows")
    return flow


@pytest.mark.sampled
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("tick_seconds", [0.0, 0.004])
def test_rows_of_timers_are_exact_when_a_request_or_reply_is_lost_or_a_worker_dies(
    redis_url: str, database_url: str, moment: Moment, is_restarted: bool, tick_seconds: float
) -> None:
    """By the second clock the timers fire in several steps."""
    make_rows(database_url, "key TEXT, n INTEGER")
    names = [f"k{number}" for number in range(12)]
    for at in calls():
        ask(database_url, "DELETE FROM rows")
        clock = SteppingClock(tick_seconds)
        with LocalJob(redis_url, last_pipeline(database_url), partitions=1, job=f"j{at}", clock=clock) as job:
            job.assign()
            job.send(numbered(names, 2))
            job.run_until_idle()
            job.end_input()
            before = len(job.scripts["w0"].calls)
            job.scripts["w0"].break_call(moment, at)
            job.run_until_idle()
            total = len(job.scripts["w0"].calls) - before
            if is_restarted:
                # After a second unclean end timers fire singly; those that fired together must do so again.
                del job.workers["w0"]
                for incarnation in ("2-a", "3-a"):
                    job.workers.pop("w0", None)
                    job.worker("w0", incarnation)
                    job.assign("w0", is_unclean=True, is_told=False)
            job.run_and_sweep()

            assert sorted(ask(database_url, "SELECT key, n FROM rows")) == sorted((name, 2) for name in names)
            assert job.letters() == []
            job.assert_done()
            job.client.flushdb()
        if at > total:
            break
    assert at > 3


def test_of_an_upsert_the_last_row_of_each_key_stays(redis_url: str, database_url: str) -> None:
    make_rows(database_url, "key TEXT PRIMARY KEY, value INTEGER")
    with LocalJob(redis_url, rows_pipeline(database_url, key="key", mode="upsert")) as job:
        job.assign()
        feed(job)
        job.run_to_the_end()

    assert sorted(ask(database_url, "SELECT key, value FROM rows")) == [(key, 12) for key in KEYS]


def test_an_upsert_of_some_columns_leaves_the_others(redis_url: str, database_url: str) -> None:
    make_rows(database_url, "id INTEGER PRIMARY KEY, a INTEGER, b INTEGER")
    flow = Pipeline("parts")
    flow.source(read.iterable([0]), name="in").sink(write.sql(database_url, "rows", "id", "upsert"), name="rows")
    with LocalJob(redis_url, flow) as job:
        job.assign()
        job.send([{"id": 1, "a": 1}, {"id": 2, "b": 5}, {"id": 1, "b": 2}, {"id": 1, "a": 3}, {"id": 2}])
        job.send([{"id": 2, "a": 7}])
        job.run_to_the_end()

    assert sorted(ask(database_url, "SELECT id, a, b FROM rows")) == [(1, 3, 2), (2, 7, 5)]


# Bad rows.


def test_a_row_that_the_database_refuses_is_a_dead_letter_and_the_others_are_written(
    redis_url: str, database_url: str
) -> None:
    make_rows(database_url, "key TEXT, value INTEGER CHECK (value % 5 <> 0)")
    with LocalJob(redis_url, rows_pipeline(database_url), partitions=1) as job:
        job.assign()
        feed(job)
        job.run_to_the_end()

        expected = sorted(row for row in EXPECTED if row[1] % 5)
        assert sorted(ask(database_url, "SELECT key, value FROM rows")) == expected
        assert [value for _, value in job.dead_values()] == [5] * 3 + [10] * 3
        assert all("the database refuses a row" in letter.error for letter in job.letters())


@pytest.mark.sampled
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_request_or_reply_among_refused_rows_changes_nothing(
    redis_url: str, database_url: str, moment: Moment
) -> None:
    make_rows(database_url, "key TEXT, value INTEGER CHECK (value % 5 <> 0)")
    for at in calls(3):
        ask(database_url, "DELETE FROM rows")
        with LocalJob(redis_url, rows_pipeline(database_url), partitions=1, job=f"j{at}") as job:
            job.assign()
            job.scripts["w0"].break_call(moment, at)
            feed(job)
            job.end_input()
            job.run_and_sweep()
            total = len(job.scripts["w0"].calls)

            expected = sorted(row for row in EXPECTED if row[1] % 5)
            assert sorted(ask(database_url, "SELECT key, value FROM rows")) == expected
            assert [value for _, value in job.dead_values()] == [5] * 3 + [10] * 3
            job.client.flushdb()
        if at > total:
            break
    assert at > 12


@pytest.mark.sampled
def test_a_record_that_fails_only_once_is_never_lost_when_the_worker_dies_before_its_commit(
    redis_url: str, database_url: str
) -> None:
    make_rows(database_url, "value INTEGER")
    failures = [3]

    def flaky(value: int) -> int:
        if value in failures:
            failures.remove(value)
            failures.append(-value)
            raise ConnectionError("just now")
        if -value in failures:
            failures.remove(-value)
            raise ConnectionError("and when it is tried alone")
        return value

    for at in takewhile(lambda at: at < 40, calls()):
        ask(database_url, "DELETE FROM rows")
        failures[:] = [3]
        flow = Pipeline("flaky")
        stream = flow.source(read.iterable([0]), name="in").map(flaky, name="flaky")
        stream.sink(write.sql(database_url, "rows"), name="rows")
        with LocalJob(redis_url, flow, partitions=1, job=f"j{at}") as job:
            job.assign()
            job.send(range(6))
            job.scripts["w0"].break_call("before", at)
            job.end_input()
            job.run_and_sweep()

            found = sorted(value for (value,) in ask(database_url, "SELECT value FROM rows"))
            assert sorted(found + job.dead_values()) == list(range(6))
            job.client.flushdb()


def test_values_of_all_kinds_arrive_and_those_without_a_column_are_dead_letters(
    redis_url: str, database_url: str
) -> None:
    make_rows(database_url, "n INTEGER, x DOUBLE PRECISION, t TEXT, j TEXT, flag BOOLEAN")
    flow = Pipeline("kinds")
    flow.source(read.iterable([0]), name="in").sink(write.sql(database_url, "rows"), name="rows")
    with LocalJob(redis_url, flow, partitions=1) as job:
        job.assign()
        job.send([{"n": 1, "x": 1.5, "t": "é'\"", "j": {"a": [1, None]}, "flag": True}, {"n": 1.5}, {"y": 1}, {"n": 2}])
        job.run_to_the_end()

        assert ask(database_url, "SELECT n, x, t, j, flag FROM rows ORDER BY n") == [
            (1, 1.5, "é'\"", '{"a":[1,null]}', True),
            (2, None, None, None, None),
        ]
        assert job.dead_values() == [{"n": 1.5}, {"y": 1}]
        errors = [letter.error for letter in job.letters()]
        assert errors[0] in (
            "the column 'n' takes integers, not 1.5",
            'the database refuses a row: invalid input syntax for type integer: "1.5"',
        )
        assert errors[1] == "the table rows has no column 'y'; it has n, x, t, j, flag"


def test_a_table_is_made_from_the_first_rows(redis_url: str, database_url: str) -> None:
    options = {"key": "key", "mode": "upsert", "create": True}
    with LocalJob(redis_url, rows_pipeline(database_url, **options)) as job:
        job.assign()
        feed(job)
        job.run_to_the_end()

        assert sorted(ask(database_url, "SELECT key, value FROM rows")) == [(key, 12) for key in KEYS]


def test_a_missing_table_fails_the_job_with_the_statement_that_makes_it(redis_url: str, database_url: str) -> None:
    with LocalJob(redis_url, rows_pipeline(database_url), partitions=1) as job:
        job.assign()
        job.send(numbered(KEYS, 1))
        job.run_until_idle()

        record = job.jobs.read(job.job)
        assert record.state is JobState.FAILED
        assert "there is no table rows" in record.reason
        assert "CREATE TABLE rows ( key TEXT, value BIGINT )" in record.reason.replace('"', "")


# Owners.


def test_a_zombie_writes_no_row(redis_url: str, database_url: str) -> None:
    make_rows(database_url)
    with LocalJob(redis_url, rows_pipeline(database_url), partitions=1) as job:
        old = job.worker("old")
        job.assign("old")
        job.send(numbered(KEYS, 2))
        job.run_until_idle()
        job.send(numbered(KEYS, 2, first=3))
        while job.pop_ticket((0, 0)):
            job.slice("old", (0, 0))
        # The old owner has read its records before it was replaced, and writes after its successor did.
        job.assign("new", [(1, 0)], is_told=False)
        job.worker("new").look()
        job.slice("new", (1, 0))
        ends = [old.slice(1, 0), old.slice(1, 0)]

        assert SliceEnd.FENCED in ends or None in ends
        assert sorted(ask(database_url, "SELECT key, value FROM rows")) == sorted(map(tuple, numbered(KEYS, 4)))


@pytest.mark.parametrize("at", ["write", "seal"])
def test_an_older_session_is_refused_by_the_database_itself(database_url: str, at: str) -> None:
    make_rows(database_url, "value INTEGER")
    sinks = [SinkPlan("rows", "sql", "", {"table": "rows"}, None)]
    url = normal_database(database_url, "test")
    first, second = sql_effect(open_database(url), sinks), sql_effect(open_database(url), sinks)
    rows = {"rows": Batch([1])}
    end = Position("2-0")
    first.begin(Owner("j", "1", 0, 0, 1), START, {})
    if at == "seal" and "postgresql" in url:
        first.write(rows)

    assert second.begin(Owner("j", "1", 0, 0, 2), START, {}) is None
    second.write(rows)
    second.seal(START, end, 0)
    if at == "write" or "sqlite" in url:
        first.write(rows)
    with pytest.raises(SinkAway, match="fenced by the database"):
        first.seal(START, end, 0)
    first.close()
    with pytest.raises(SinkAway, match="term 2, and this one has 1"):
        first.begin(Owner("j", "1", 0, 0, 1), START, {})
    for effect in (first, second):
        effect.close()
        effect._database.drop()

    assert ask(database_url, "SELECT value FROM rows") == [(1,)]


def test_an_owner_of_an_earlier_generation_writes_nothing_more(database_url: str) -> None:
    make_rows(database_url, "value INTEGER")
    sinks = [SinkPlan("rows", "sql", "", {"table": "rows"}, None)]
    url = normal_database(database_url, "test")
    first, second = sql_effect(open_database(url), sinks), sql_effect(open_database(url), sinks)
    rows = {"rows": Batch([1])}
    first.begin(Owner("j", "7.0", 0, 0, 1), START, {})

    assert second.begin(Owner("j", "7.1", 0, 0, 2), START, {}) is None
    first.write(rows)
    with pytest.raises(SinkAway, match="fenced by the database"):
        first.seal(START, Position("2-0"), 0)

    for effect in (first, second):
        effect.close()
        effect._database.drop()
    assert ask(database_url, "SELECT value FROM rows") == []


def test_a_redis_that_has_lost_its_last_writes_is_noticed(redis_url: str, database_url: str) -> None:
    make_rows(database_url)
    with LocalJob(redis_url, rows_pipeline(database_url), partitions=1) as job:
        job.assign()
        job.send(numbered(KEYS, 2))
        job.run_until_idle()
        ask(database_url, "UPDATE celeriac_positions SET start_entry = '100-0', end_entry = '101-0'")
        job.restart("w0")
        job.send(numbered(KEYS, 1, first=3))
        job.run_until_idle()

        record = job.jobs.read(job.job)
        assert record.state is JobState.FAILED
        assert "Redis has lost its last writes: stage 1 partition 0" in record.reason


def test_a_second_job_of_the_same_id_begins_anew(redis_url: str, database_url: str) -> None:
    make_rows(database_url)
    for _ in range(2):
        with LocalJob(redis_url, rows_pipeline(database_url), partitions=1) as job:
            job.assign()
            feed(job)
            job.run_to_the_end()
            job.client.flushdb()

    assert sorted(ask(database_url, "SELECT key, value FROM rows")) == sorted(EXPECTED * 2)


def test_a_table_a_file_and_a_stream_of_one_stage_hold_the_same_and_a_bad_row_is_in_none(
    redis_url: str, database_url: str, tmp_path: Path
) -> None:
    make_rows(database_url, "value INTEGER CHECK (value <> 5)")
    ask(database_url, "CREATE TABLE other (value INTEGER CHECK (value <> 7))")
    flow = Pipeline("all")
    stream = flow.source(read.iterable([0]), name="in")
    stream.sink(write.sql(database_url, "rows"), name="rows")
    stream.sink(write.sql(f"sqlite:///{tmp_path}/second.db", "other", create=True), name="second")
    stream.sink(write.sql(database_url, "other"), name="other")
    stream.sink(write.jsonl(tmp_path / "out"), name="files")
    stream.sink(write.stream("out"), name="out")
    with LocalJob(redis_url, flow, partitions=1) as job:
        job.assign()
        job.send(range(10))
        job.run_to_the_end()
        facts = [StagedFacts.decode(raw) for raw in job.jobs.staged_files(job.job)["files"]]
        publish(job.plan.sinks[3], job.job, facts)

        expected = [0, 1, 2, 3, 4, 6, 8, 9]
        assert job.dead_values() == [5, 7]
        assert job.values() == expected
    assert sorted(ask(database_url, "SELECT value FROM rows")) == [(value,) for value in expected]
    assert sorted(ask(database_url, "SELECT value FROM other")) == [(value,) for value in expected]
    second = ask(f"sqlite:///{tmp_path}/second.db", "SELECT value FROM other")
    assert sorted(second) == [(value,) for value in expected]
    lines = [line for part in (tmp_path / "out").glob("part-*") for line in part.read_text().splitlines()]
    assert sorted(map(int, lines)) == expected


def test_a_user_that_may_make_no_table_is_told_the_statement_for_positions(redis_url: str, postgres_url: str) -> None:
    make_rows(postgres_url)
    ask(postgres_url, "DROP ROLE IF EXISTS clerk")
    ask(postgres_url, "CREATE ROLE clerk LOGIN PASSWORD 'x'")
    ask(postgres_url, "GRANT INSERT, SELECT ON rows TO clerk")
    host = postgres_url.rpartition("@")[2]
    flow = rows_pipeline(f"postgresql://clerk:x@{host}")
    with LocalJob(redis_url, flow, partitions=1) as job:
        with pytest.raises(SinkError, match="permission denied") as caught:
            check_effects(job.graph, job.plan)
        assert "make this one for it: CREATE TABLE celeriac_positions (" in caught.value.hint

        ask(postgres_url, caught.value.hint.partition(": ")[2])
        ask(postgres_url, "GRANT INSERT, SELECT, UPDATE ON celeriac_positions TO clerk")
        check_effects(job.graph, job.plan)
        job.assign()
        feed(job)
        job.run_to_the_end()

    assert sorted(ask(postgres_url, "SELECT key, value FROM rows")) == EXPECTED
    ask(postgres_url, "DROP OWNED BY clerk; DROP ROLE clerk")
