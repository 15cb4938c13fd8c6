"""A sink that is away holds up only the partitions that write to it; when it is back, nothing is missing or doubled."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import Pipeline, read, write
from pipeline.lifecycle import JobState
from stages.partition import SliceEnd
from tests.postgres import PostgresServer
from tests.runtime.harness import HandClock, LocalJob, numbered
from tests.runtime.tables import KEYS, ask, make_rows


def two_ways(url: str) -> Pipeline:
    """[key, number] -> the table `rows`, and the stream `out`, by a stage each."""
    flow = Pipeline("two_ways")
    source = flow.source(read.iterable([0]), name="in")
    rows = source.key_by(lambda pair: pair[0], name="by_rows").map(lambda pair: {"n": pair[1]}, name="n")
    rows.sink(write.sql(url, "rows"), name="rows")
    source.key_by(lambda pair: pair[0], name="by_out").map(lambda pair: pair[1], name="m").sink(write.stream("out"))
    return flow


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.close()


EXPECTED = sorted(tuple(pair) for pair in numbered(KEYS, 6))


def test_while_a_database_is_away_others_go_on_and_then_all_rows_are_there(
    redis_url: str, own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    clock, url = HandClock(), own_postgres.url
    make_rows(url, "key TEXT, n INTEGER")
    with LocalJob(redis_url, two_ways(url), partitions=1, clock=clock) as job:
        job.assign()
        job.send(numbered(KEYS, 2))
        job.run_until_idle()

        own_postgres.stop()
        job.send(numbered(KEYS, 2, first=3))
        job.run_until_idle()
        worker = job.workers["w0"]
        report = worker.hand.report(clock.now)
        assert job.by_key() == {key: [1, 2, 3, 4] for key in KEYS}
        assert report["hand"]["1.0"]["why"] == "backoff"
        assert "is away" in report["hand"]["1.0"]["reason"]
        assert "s3cret" not in caplog.text + str(report)
        # Tickets that come meanwhile are used up, and run nothing.
        job.send(numbered(KEYS, 1, first=5))
        job.run_until_idle()
        assert worker.slice(1, 0) is SliceEnd.BACKOFF
        pauses = []
        for _ in range(12):
            (pause,) = job.pauses()
            pauses.append(pause)
            clock.now += pause
            job.look()
        assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0])

        own_postgres.start()
        clock.now += 30.0
        job.look()
        job.send(numbered(KEYS, 1, first=6))
        job.run_until_idle()
        job.run_to_the_end()

        assert job.pauses() == []
        assert worker.hand.report(clock.now)["hand"] == {}
        assert sorted(ask(url, "SELECT key, n FROM rows")) == EXPECTED
        assert job.jobs.read(job.job).state is JobState.RUNNING
        assert job.letters() == []


def test_a_worker_that_dies_while_it_backs_off_is_replaced_as_any_other(redis_url: str, tmp_path: Path) -> None:
    clock, url = HandClock(), f"sqlite:///{tmp_path}/later/test.db"
    with LocalJob(redis_url, two_ways(url), partitions=1, clock=clock) as job:
        job.assign()
        job.send(numbered(KEYS, 6))
        job.run_until_idle()
        assert job.pauses() == [0.1]

        (tmp_path / "later").mkdir()
        make_rows(url, "key TEXT, n INTEGER")
        job.restart("w0")
        job.run_until_idle()
        job.run_to_the_end()

        assert sorted(ask(url, "SELECT key, n FROM rows")) == EXPECTED


def test_a_partition_that_is_moved_while_it_backs_off_is_served_by_its_new_owner(
    redis_url: str, tmp_path: Path
) -> None:
    clock, url = HandClock(), f"sqlite:///{tmp_path}/later/test.db"
    with LocalJob(redis_url, two_ways(url), partitions=1, clock=clock) as job:
        job.assign()
        job.send(numbered(KEYS, 6))
        job.run_until_idle()

        (tmp_path / "later").mkdir()
        make_rows(url, "key TEXT, n INTEGER")
        job.assign("w1", [(1, 0)])
        clock.now += 60.0
        job.look()
        job.run_to_the_end()

        assert job.pauses() == []
        assert sorted(ask(url, "SELECT key, n FROM rows")) == EXPECTED


def test_a_frozen_server_holds_nobody_for_ever(
    redis_url: str, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.sinks.sql_database.ANSWER_SECONDS", 0.5)
    clock, url = HandClock(), own_postgres.url
    make_rows(url, "key TEXT, n INTEGER")
    with LocalJob(redis_url, two_ways(url), partitions=1, clock=clock) as job:
        job.assign()
        job.send(numbered(KEYS, 3))
        job.run_until_idle()
        own_postgres.signal(signal.SIGSTOP)
        job.send(numbered(KEYS, 3, first=4))
        job.run_until_idle()
        assert job.pauses() == [0.1]
        assert job.by_key() == {key: [1, 2, 3, 4, 5, 6] for key in KEYS}

        own_postgres.signal(signal.SIGCONT)
        clock.now += 60.0
        job.look()
        job.run_to_the_end()

        assert sorted(ask(url, "SELECT key, n FROM rows")) == EXPECTED
