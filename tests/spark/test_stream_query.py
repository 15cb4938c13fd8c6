"""The streaming query on a Spark session: micro-batches over a job's inboxes, broken in the ways that Spark breaks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pipeline.settings import Limits
from pipeline.spark.bulk.definition import define
from pipeline.spark.streaming.query import InboxQuery, QuerySettings, planned_in
from pipeline.spark.streaming.slices import Served, Slice, slices_in
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.ownership import Ownership
from pipeline.store.scripts import Scripts
from stages.streaming.member import StreamMember
from stages.streaming.task import TaskSettings
from tests.e2e.chaos import wait_until
from tests.runtime.harness import LocalJob, assert_sequence, numbered, sequence_pipeline
from tests.spark.frames import forget_newest_commit, forget_plans_behind
from tests.spark.streamed import NAME, Failing

pytestmark = pytest.mark.timeout(600)

SECONDS = 120.0

LOOK_SECONDS = 1.0
"""A query that has failed ends no batch."""

KEYS = [f"k{number}" for number in range(5)]


class Driver:
    """The query and its member in this process; the leader is the test.

    Spark keeps the processes of its tasks from test to test, and they what an incarnation knows: none comes twice.
    """

    def __init__(self, spark: Any, job: LocalJob, folder: Path) -> None:
        self.spark, self.job, self.folder = spark, job, folder
        self.incarnation = f"1-{uuid4().hex}"
        folder.mkdir(exist_ok=True)
        self.client = connect(job.url)
        self.ownership = Ownership(Scripts(self.client), job.job, NAME, self.incarnation)
        self.member = StreamMember(self.ownership, {})
        self.member.on_batch_end = self._beat
        _, definition = define(job.graph)
        self.task = TaskSettings(job.url, job.job, NAME, self.incarnation, definition, 5.0)
        self.batches = 0
        self._batch_ended = threading.Event()

    def _beat(self) -> None:
        self.batches += 1
        with connect(self.job.url) as client:
            said = Ownership(Scripts(client), self.job.job, NAME, self.incarnation)
            said.heartbeat(json.dumps(self.member.report(said)))
        self._batch_ended.set()

    def take(self) -> None:
        for place in self.job.places:
            term = int(self.job.client.hget(keys.meta(self.job.job, *place), "term")) + 1
            to = (NAME, self.incarnation)
            assert self.job.leader.assign(self.job.job, self.job.token, place, to, term, f"s{term}", b"{}", False)
        self.member.look()

    @contextmanager
    def running(self, serve: Callable[[Slice], Served] | None = None, **paced: Any) -> Iterator[InboxQuery]:
        names = (self.job.job, NAME, self.incarnation, self.job.url, self.folder)
        query = InboxQuery(
            self.spark, QuerySettings(*names, **{"records": 0, **paced}), serve or self.task.serve, self.member
        )
        query.start()
        try:
            yield query
        finally:
            query.stop()

    def wait(self, query: InboxQuery) -> None:
        """Until every inbox is empty, and the query has noticed. Only a batch can have changed that."""
        deadline = time.monotonic() + SECONDS
        while True:
            self._batch_ended.clear()
            assert query.is_active, query.fault()
            self.member.look()
            self.job.drain_outputs()
            if all(part.at_end for part in self.job.jobs.facts(self.job.job).partitions):
                return
            assert time.monotonic() < deadline, "there are still records in the inboxes"
            self._batch_ended.wait(LOOK_SECONDS)


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with LocalJob(redis_url, sequence_pipeline(2), limits=Limits(step_records=32)) as made:
        yield made


def test_failing_tasks_and_a_process_that_is_killed_apply_each_record_once(
    spark: Any, job: LocalJob, tmp_path: Path
) -> None:
    driver = Driver(spark, job, tmp_path / "q")
    driver.take()
    job.send(numbered(KEYS, 300), entry_records=41)
    (tmp_path / "attempts").mkdir()
    with driver.running(Failing(driver.task, str(tmp_path / "attempts")).serve, records=400) as query:
        driver.wait(query)
        job.send(numbered(KEYS, 100, 301), entry_records=41)
        job.end_input()
        driver.wait(query)

    assert len(list((tmp_path / "attempts").iterdir())) > 10
    assert driver.batches > 3
    job.assert_done()
    assert_sequence(job, KEYS, 400)


def test_partitions_go_from_workers_to_spark_and_back_in_the_middle(spark: Any, job: LocalJob, tmp_path: Path) -> None:
    """The workers take them over while a batch runs: what it has not committed by then is refused."""
    driver = Driver(spark, job, tmp_path / "q")
    job.assign("w0")
    job.send(numbered(KEYS, 40), entry_records=7)
    job.serve()
    driver.take()
    job.workers.pop("w0").close()
    job.send(numbered(KEYS, 60, 41), entry_records=7)
    with driver.running(records=20) as query:
        wait_until(lambda: driver.batches >= 2, "two batches have run", 60.0)
        job.send(numbered(KEYS, 100, 101), entry_records=7)
        wait_until(lambda: driver.batches >= 3, "a batch of these has run", 60.0)

        job.assign("w1", is_told=False)
        job.run_and_sweep()
        driver.member.look()
        assert driver.member.places == []

        driver.take()
        job.workers.pop("w1").close()
        job.send(numbered(KEYS, 20, 201), entry_records=7)
        job.end_input()
        driver.wait(query)

    job.assert_done()
    assert_sequence(job, KEYS, 220)


def test_a_driver_that_dies_behind_a_batch_runs_it_again_and_doubles_nothing(
    spark: Any, job: LocalJob, tmp_path: Path
) -> None:
    """With its log, as after a crash between the last commit of a task and Spark's own."""
    driver = Driver(spark, job, tmp_path / "q")
    driver.take()
    job.send(numbered(KEYS, 50))
    with driver.running() as query:
        driver.wait(query)
    checkpoint = tmp_path / "q" / "checkpoint"
    newest = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal())
    before = slices_in(planned_in(checkpoint, newest))
    forget_newest_commit(checkpoint)
    forget_plans_behind(checkpoint, newest)
    again: list[list[Slice]] = []
    begin = driver.member.begin
    driver.member.begin = lambda slices: (again.append(slices), begin(slices))[1]  # type: ignore[method-assign,func-returns-value]

    job.send(numbered(KEYS, 50, 51))
    job.end_input()
    with driver.running() as query:
        driver.wait(query)

    assert again[0] == before
    job.assert_done()
    assert_sequence(job, KEYS, 100)


def test_a_query_that_takes_what_is_available_ends_there(spark: Any, redis_url: str, tmp_path: Path) -> None:
    with LocalJob(redis_url, sequence_pipeline(), limits=Limits(step_records=32)) as job:
        driver = Driver(spark, job, tmp_path / "q")
        driver.take()
        job.send(numbered(KEYS, 50), entry_records=9)
        for through in ({0}, {0, 1}):  # what a stage gives to the next one is taken by the next query
            with driver.running(interval_seconds=None, records=60) as query:
                wait_until(lambda: not query.is_active, "the query has ended by itself", 60.0)
                assert query.fault() == ""
            parts = job.jobs.facts(job.job).partitions
            assert {part.stage for part in parts} - {part.stage for part in parts if not part.at_end} == through

        assert_sequence(job, KEYS, 50)


def test_the_address_of_redis_is_in_no_option_that_spark_shows(tmp_path: Path) -> None:
    settings = QuerySettings("j", NAME, "1-a", "redis://:secret@h", tmp_path, 0)

    path = settings.keep_address()

    assert "secret" not in repr(settings)
    assert (path.read_text(), oct(path.stat().st_mode & 0o777)) == ("redis://:secret@h", "0o600")
