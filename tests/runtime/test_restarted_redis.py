"""Redis comes back, with or without its last writes: old owners, leaders and senders are refused, or the job halts.

The append-only file of a real server is cut at a chosen point, so that old tokens and positions are there again.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leader.wiring import make_round
from pipeline import Pipeline, read, write
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.link import Link
from pipeline.cli.run import Run, RunOptions
from pipeline.cli.screen import Screen
from pipeline.cli.services import NodeProcess, Server, Workspace
from pipeline.client import Client
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import JobRestored, JobStateError, StaleTerm, StoreRestarted, TailLost, UnknownJob
from pipeline.lifecycle import JobState
from pipeline.positions import START, Position
from pipeline.producer import Producer
from pipeline.publishing import publish_job
from pipeline.records import Batch
from pipeline.store import keys
from pipeline.store.commits import Commit, Committer, Refusal, Refused
from pipeline.store.connection import connect
from pipeline.store.leadership import Leadership
from pipeline.store.ownership import Calm, Ownership
from pipeline.store.scripts import Scripts
from pipeline.store.senders import FeedAddress
from stages.partition import SliceEnd
from stages.pulse import Pulse
from tests import cutting
from tests.cutting import size
from tests.runtime.harness import LocalJob, insist, stopped_clock


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis.start(tmp_path / "redis", fsync="no") as server:
        yield server


def counted(_key: str, _value: str, count: int | None) -> tuple[int, int]:
    return (count or 0) + 1, (count or 0) + 1


def counts() -> Pipeline:
    flow = Pipeline("counts")
    words = flow.source(read.iterable(list), name="words").key_by(str, name="by_word")
    words.stateful_map(counted, name="count").sink(write.stream("out"), name="out")
    return flow


def produced() -> Pipeline:
    flow = Pipeline("produced")
    flow.source(read.producer(), name="events").sink(write.stream("out"), name="out")
    return flow


class KilledJob(LocalJob):
    """A job on a server that is killed."""

    def __init__(self, server: EmbeddedRedis, pipeline: Pipeline) -> None:
        super().__init__(server.url, pipeline, partitions=1)
        self.server = server


@pytest.fixture
def job(server: EmbeddedRedis) -> Iterator[KilledJob]:
    with KilledJob(server, counts()) as job:
        yield job


def come_back(job: KilledJob, length: int | None = None) -> None:
    """The job's server is killed, and comes back without what it has written behind so many bytes, or with it all."""
    server = job.server
    cutting.come_back_as_of(server, cutting.size(server) if length is None else length)
    for scripts in (job._scripts, *job.scripts.values()):
        scripts._kept.clear()  # a connection that is closed would only fail once more


def a_batch(*values: Any) -> Batch:
    return Batch(list(values))


def losses(job: KilledJob) -> tuple[str, ...]:
    return job.jobs.read(job.job).losses


def compare(job: KilledJob, name: str) -> None:
    """What the pulse of a worker does when it has met another run of the server."""
    ownership = Ownership(Scripts(job.client), job.job, name, "1-a")
    insist(ownership.scripts.meet)
    job.workers[name].compare(ownership)


# Owners.


def test_an_owner_whose_token_the_cut_brought_back_is_refused_and_the_commit_that_is_lost_is_named(
    server: EmbeddedRedis, job: KilledJob
) -> None:
    job.assign("w1")
    job.send(["a", "b"])
    job.run_until_idle()
    mark = size(server)
    row = job.workers["w1"].ownership.assigned()[0]
    job.send(["c"])
    job.assign("w2", is_told=False)
    job.workers["w2"].look()
    while job.pop_ticket((0, 0)) or job.facts((0, 0)).backlog:
        job.slice("w2", (0, 0))

    come_back(job, mark)
    insist(lambda: job.jobs._scripts.run("gate", [keys.leader("j"), keys.job("j")], ["no", "open"]))
    assert job.meta((0, 0))["token"] == row.token  # the zombie's
    ends = [job.slice("w1", (0, 0)), job.slice("w1", (0, 0))]

    assert not {SliceEnd.IDLE, SliceEnd.YIELDED} & set(ends)
    assert job.workers["w1"].ownership.acquire(row) is None
    compare(job, "w2")
    assert job.jobs.state("j") is JobState.FAILED
    assert losses(job) == ("stage 0 partition 0: worker w2 had committed up to 4-0/0, Redis has 3-0/0 (1 record)",)


def test_no_token_from_before_a_restart_is_worth_anything_whether_the_leader_has_adopted_it_or_not(
    job: KilledJob,
) -> None:
    job.assign("w1")
    job.send(["a"])
    job.run_until_idle()
    rows = job.workers["w1"].ownership.assigned()
    terms = {row.term for row in rows}
    come_back(job)

    owner = Ownership(Scripts(job.client), "j", "w1", "1-a")
    assert [owner.acquire(row) for row in rows] == [None, None]
    assert owner.take_tickets(1, [], 10, 10) == []
    job.adopt()
    assert [owner.acquire(row) for row in rows] == [None, None]

    compare(job, "w1")
    job.assign("w1")
    job.lane("b").append(1, a_batch("b"))
    job.run_until_idle()
    assert job.newest() == {"a": 1, "b": 1}
    assert losses(job) == ()
    assert min(row.term for row in job.workers["w1"].ownership.assigned()) > max(terms)


def test_a_term_that_was_lost_is_never_given_again(server: EmbeddedRedis, job: KilledJob) -> None:
    job.assign("w1")
    mark = size(server)
    for _ in range(3):
        job.assign("w1")
    lost = {row.term for row in job.workers["w1"].ownership.assigned()}

    come_back(job, mark)
    job.adopt()
    job.assign("w1")

    assert min(row.term for row in job.workers["w1"].ownership.assigned()) > max(lost)


def test_a_worker_compares_before_its_first_heartbeat_on_another_run_of_the_server(
    server: EmbeddedRedis, job: KilledJob
) -> None:
    job.assign("w1")
    mark = size(server)
    job.send(["a", "b"])
    job.run_until_idle()
    worker = job.workers["w1"]
    ownership = Ownership(Scripts(job.client), "j", "w1", "1-a")
    pulse = Pulse(ownership, dict, lambda: None, lambda: None, lambda: None, worker.compare)
    pulse._meet()
    come_back(job, mark)

    ownership.scripts._kept.clear()
    with pytest.raises(StoreRestarted):
        pulse._beat()
    pulse._meet()
    pulse._beat()

    (facts,) = job.jobs.facts("j").workers
    assert facts.report["server"] == job.jobs.run_id()
    assert [line.split(":")[0] for line in losses(job)] == ["stage 0 partition 0", "stage 1 partition 0"]


def test_a_worker_that_compares_late_still_notices_when_others_have_gone_further_meanwhile(
    server: EmbeddedRedis, job: KilledJob
) -> None:
    job.assign("w1")
    mark = size(server)
    job.send(["a", "b"])
    job.run_until_idle()
    job._lanes.clear()
    come_back(job, mark)
    job.adopt()
    job.assign("w2", is_told=False)
    job.lane("z").append(1, a_batch("x", "y", "z"))
    for place in job.workers["w2"].look():
        job.slice("w2", place)
    assert str(job.facts((0, 0)).position) == "4-0/0"

    compare(job, "w1")

    assert "stage 0 partition 0: worker w1 had committed up to 3-0/0, Redis has 1-0/0 (2 records)" in losses(job)


def test_a_commit_under_a_token_that_the_cut_brought_back_is_refused_though_all_else_fits(
    server: EmbeddedRedis, job: KilledJob
) -> None:
    job.assign("w1")
    job.send(["a"])
    mark = size(server)
    job.assign("w2", is_told=False)
    come_back(job, mark)
    row = job.workers["w1"].ownership.assigned()[0]
    scripts = Scripts(job.client)
    committer = Committer(scripts, "j", 0, 0, row.token, job.limits)
    commit = Commit(START, Position("2-0"), "keep", "2-0", 10)

    assert committer.send(commit, 1) == Refused(Refusal.NEW_SERVER)
    owner = Ownership(scripts, "j", "w1", "1-a")
    assert job.facts((0, 0)).queued == 1
    assert owner.take_tickets(1, [Calm(0, 0, row.token, START)], 10, 1000) == []
    job.adopt()
    assert committer.send(commit, 1) == Refused(Refusal.FENCED)


def test_a_worker_that_is_given_less_than_it_has_committed_halts_the_job(server: EmbeddedRedis, job: KilledJob) -> None:
    job.assign("w1")
    mark = size(server)
    job.send(["a"])
    job.run_until_idle()
    come_back(job, mark)
    job.adopt()

    job.assign("w1")

    assert job.workers["w1"].places == []
    assert "stage 0 partition 0: worker w1 had committed up to 2-0/0, Redis has 1-0/0 (1 record)" in losses(job)


# The leader.


def test_a_lease_from_before_a_restart_is_nobodys(job: KilledJob) -> None:
    come_back(job)

    lease = insist(lambda: Leadership(Scripts(job.client), "leader-2", "n2").hold("j", 600))

    assert (lease.holder, lease.is_new) == ("leader-2", True)


def test_the_leader_halts_the_job_when_it_has_seen_more(server: EmbeddedRedis, job: KilledJob) -> None:
    job.client.hdel(keys.leader("j"), "until")
    round_ = make_round(Scripts(connect(server.url)), "leader-2", random.Random(1), stopped_clock)
    job.assign("w1")
    job.workers["w1"].ownership.heartbeat(json.dumps({}))
    job.send(["a"])
    mark = size(server)
    job.send(["b", "c"])
    job.run_until_idle()
    round_.run_once()

    come_back(job, mark)
    counted = [round_.run_once() for _ in range(3)]

    assert {"halted": 2} in counted
    assert job.jobs.state("j") is JobState.FAILED
    assert losses(job) == (
        "stage 0 partition 0: the leader had seen commits up to 4-0/0, Redis has 1-0/0 (3 records)",
        "stage 1 partition 0: the leader had seen commits up to 4-0/0, Redis has 1-0/0 (3 records)",
    )


def test_the_leader_waits_for_owners_to_compare_and_then_goes_on_when_nothing_is_lost(
    server: EmbeddedRedis, job: KilledJob
) -> None:
    job.client.hdel(keys.leader("j"), "until")
    round_ = make_round(Scripts(connect(server.url)), "leader-2", random.Random(1), stopped_clock)
    job.assign("w1")
    worker = job.workers["w1"].ownership
    job.send(["a"])
    job.run_until_idle()
    worker.heartbeat(json.dumps({"server": worker.scripts.server}))
    round_.run_once()

    come_back(job)
    assert [round_.run_once(), round_.run_once()] == [{}, {}]
    insist(lambda: worker.heartbeat(json.dumps({"server": job.jobs.run_id()})))
    assert round_.run_once() == {"adopted": 1}
    assert round_.run_once() == {"assigned": 2}

    job.look()
    job.send(["b"], split="b")
    job.run_until_idle()
    assert job.newest() == {"a": 1, "b": 1}
    assert (job.jobs.state("j"), losses(job)) == (JobState.RUNNING, ())


# Senders.


def test_a_sender_goes_on_when_nothing_is_lost_and_waits_until_the_server_is_adopted(job: KilledJob) -> None:
    lane = job.lane("a")
    lane.append(1, a_batch("a"))
    come_back(job)

    with pytest.raises(Exception, match="stayed full"):
        lane.append(2, a_batch("b"))
    job.adopt()
    lane.append(2, a_batch("b"))

    job.assign("w1")
    job.run_until_idle()
    assert job.newest() == {"a": 1, "b": 1}


def test_a_sender_that_was_acknowledged_more_halts_the_job_and_no_number_is_used_twice(
    server: EmbeddedRedis, job: KilledJob
) -> None:
    lane = job.lane("a")
    lane.append(1, a_batch("a"))
    mark = size(server)
    lane.append(2, a_batch("b", "c"))
    come_back(job, mark)
    job.adopt()

    with pytest.raises(TailLost, match=r"0/words/a had acknowledged up to 3, Redis has 1 \(2 records\)"):
        lane.append(4, a_batch("d"))

    assert job.jobs.state("j") is JobState.FAILED
    assert losses(job) == ("source 'words': sender 0/words/a had acknowledged up to 3, Redis has 1 (2 records)",)


def test_an_epoch_that_was_lost_is_noticed_though_no_record_was(server: EmbeddedRedis, job: KilledJob) -> None:
    first = job.feed().lane("a", exclusive=True)
    first.append(1, a_batch("a"))
    mark = size(server)
    second = job.feed().lane("a", exclusive=True)
    come_back(job, mark)
    job.adopt()

    with pytest.raises(TailLost, match="forgotten that this sender registered"):
        second.append(2, a_batch("b"))


def test_a_sender_whose_id_was_given_to_another_meanwhile_does_not_write_in_its_place(
    server: EmbeddedRedis, job: KilledJob
) -> None:
    job.lane("a").append(1, a_batch("a"))
    mark = size(server)
    mine = job.lane("mine")
    mine.append(1, a_batch("x"))
    come_back(job, mark)
    job.adopt()
    other = job.feed().lane("other")

    with pytest.raises(TailLost, match="0/words/mine had acknowledged up to 1, Redis has 0"):
        mine.append(2, a_batch("y"))
    assert other._id == mine._id


def test_a_sender_that_had_nothing_acknowledged_registers_again_and_goes_on(
    server: EmbeddedRedis, job: KilledJob
) -> None:
    mark = size(server)
    lane = job.lane("a")
    come_back(job, mark)
    job.adopt()
    other = job.feed().lane("other")
    assert other._id == lane._id

    lane.append(1, a_batch("a"))

    job.assign("w1")
    job.run_until_idle()
    assert (job.newest(), losses(job)) == ({"a": 1}, ())
    assert (lane.taken, job.feed().lane("other").taken) == (1, 0)


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_end_of_a_source_is_refused_only_when_the_end_of_a_split_is_lost(
    server: EmbeddedRedis, job: KilledJob, is_lost: bool
) -> None:
    feed = FeedAddress(job.url, job.job, "words").open()
    lane = FeedAddress(job.url, job.job, "words").open().lane("split")
    lane.append(1, a_batch("a"))
    before_the_end = size(server)
    lane.finish(1)
    come_back(job, before_the_end if is_lost else None)

    if not is_lost:
        feed.complete(1)
        assert job.jobs.read(job.job).completed_sources == {"words"}
        return
    with pytest.raises(TailLost, match="source 'words': 1 split had ended, of which Redis has 0"):
        feed.complete(1)
    assert losses(job) == ("source 'words': 1 split had ended, of which Redis has 0",)
    assert job.jobs.state(job.job) is JobState.FAILED
    insist(lambda: job.jobs.losses(job.job).accept(job.jobs.read(job.job)))
    with pytest.raises(JobRestored):
        feed.complete(1)


# Flushed.


def test_a_flushed_redis_is_told_by_everybody_and_nobody_makes_the_job_insist(
    server: EmbeddedRedis, job: KilledJob
) -> None:
    job.assign("w1")
    lane = job.lane("a")
    lane.append(1, a_batch("a"))
    reader = Client(server.url).results("j", wait_seconds=0)
    job.run_until_idle()
    job.client.flushall()

    for call in (
        lambda: lane.append(2, a_batch("b")),
        lambda: job.workers["w1"].ownership.heartbeat("{}"),
        lambda: next(reader),
        lambda: job.leader.hold("j", 60),
    ):
        with pytest.raises(UnknownJob, match="this Redis no longer knows job 'j'"):
            call()
    assert job.slice("w1", (0, 0)) is SliceEnd.STOPPED
    with pytest.raises(UnknownJob):
        job.jobs.facts("j")
    assert job.client.dbsize() == 0


# Readers.


def test_a_reader_that_has_read_more_halts_the_job(server: EmbeddedRedis, job: KilledJob) -> None:
    job.assign("w1")
    job.send(["a"])
    job.run_until_idle()
    mark = size(server)
    with Client(server.url) as client:
        results = client.results("j", reader="shop", start="end", wait_seconds=0)
        job.send(["a", "a"])
        job.run_until_idle()
        assert [result.value for result in results] == [2, 3]
        come_back(job, mark)
        job.adopt()

        results._scripts._kept.clear()
        with pytest.raises(TailLost, match=r"reader shop had read up to result 3, Redis has 1 \(2 records\)"):
            next(results)
    assert job.jobs.state("j") is JobState.FAILED


def test_a_reader_goes_on_when_only_its_own_place_was_lost(server: EmbeddedRedis, job: KilledJob) -> None:
    job.assign("w1")
    with Client(server.url) as client:
        results = client.results("j", reader="shop", wait_seconds=0)
        job.send(["a", "a"])
        job.run_until_idle()
        mark = size(server)
        assert [result.value for result in results] == [1, 2]
        results.commit()
        come_back(job, mark)
        job.adopt()
        compare(job, "w1")
        job.assign("w1")
        job.lane("b").append(1, a_batch("a"))
        job.run_until_idle()

        assert [result.value for result in results] == [3]
        results.commit()
        assert client.outputs("j")[0].readers[0].next_number == 4
    assert losses(job) == ()


# Going on.


def test_a_job_that_has_halted_goes_on_only_by_accepting_and_then_under_another_generation(
    server: EmbeddedRedis, job: KilledJob
) -> None:
    lane = job.lane("a")
    lane.append(1, a_batch("a"))
    mark = size(server)
    lane.append(2, a_batch("b"))
    come_back(job, mark)
    job.adopt()
    with pytest.raises(TailLost):
        lane.append(3, a_batch("c"))

    with pytest.raises(JobStateError, match="has halted"):
        job.jobs.transition("j", JobState.RUNNING)
    record = job.jobs.read("j")
    assert job.jobs.losses("j").accept(record) is JobState.RUNNING

    after = job.jobs.read("j")
    assert (after.generation, after.losses, after.accepted) == (1, (), record.losses)
    with pytest.raises(JobRestored) as told:
        lane.append(3, a_batch("c"))
    assert (told.value.acknowledged, told.value.survived) == (2, 1)
    with pytest.raises(JobRestored):
        job.feed().lane("new")
    job.jobs.transition("j", JobState.CANCELLED)
    with pytest.raises(JobStateError, match="nothing is known to be lost"):
        job.jobs.losses("j").accept(after)


def test_senders_go_on_behind_what_survived_under_the_new_generation(server: EmbeddedRedis, job: KilledJob) -> None:
    lane = job.lane("a")
    lane.append(1, a_batch("a"), position=lambda index: {"line": index})
    mark = size(server)
    lane.append(2, a_batch("b"), position=lambda index: {"line": 1 + index})
    come_back(job, mark)
    job.adopt()
    with pytest.raises(TailLost):
        lane.append(3, a_batch("c"))
    job.jobs.losses("j").accept(job.jobs.read("j"))

    anew = FeedAddress(server.url, "j", "words").open().lane("a")

    assert (anew.taken, anew.position, anew.position_at) == (1, {"line": 0}, 1)
    anew.append(2, a_batch("b", "c"))
    job.leader.hold("j", 600)
    adopt_token = job.leader.hold("j", 600).token
    job.token = adopt_token
    job.assign("w1")
    job.run_until_idle()
    assert job.newest() == {"a": 1, "b": 1, "c": 1}


def test_a_producer_of_the_old_generation_is_told_what_survived(server: EmbeddedRedis) -> None:
    with KilledJob(server, produced()) as job:
        producer = Producer("j", server.url, name="shop", lanes=1, full_timeout_seconds=5)
        producer.send("k", 1)
        producer.flush()
        mark = size(server)
        producer.send("k", 2)
        producer.flush()
        come_back(job, mark)
        job.adopt()
        other = Producer("j", server.url, name="late", lanes=1, full_timeout_seconds=5)
        other.send("k", 7)
        other.flush()
        job.jobs.losses("j").report(job.jobs.read("j").run, ["somebody misses something"])
        job.jobs.losses("j").accept(job.jobs.read("j"))

        for each, had in ((producer, 2), (other, 1)):
            each.send("k", 3)
            with pytest.raises(JobRestored, match="goes on under generation 1") as told:
                each.flush()
            assert (told.value.acknowledged, told.value.survived) == (had, 1)


# Sinks.


def table_pipeline(path: Path, mode: str) -> Pipeline:
    flow = Pipeline("table")
    words = flow.source(read.iterable(list), name="words").key_by(str, name="by_word")
    rows = words.stateful_map(counted, name="count")
    key = {"key": "key"} if mode == "upsert" else {}
    rows.sink(write.sql(f"sqlite:///{path}", "rows", mode=mode, **key), name="table")
    return flow


@pytest.mark.parametrize(
    ("mode", "expected"), [("insert", [("a", 1), ("b", 1), ("b", 1)]), ("upsert", [("a", 1), ("b", 1)])]
)
def test_a_database_that_is_ahead_halts_the_job_and_has_its_rows_twice_at_most_afterwards(
    server: EmbeddedRedis, tmp_path: Path, mode: str, expected: list[Any]
) -> None:
    path = tmp_path / "test.db"
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE rows (key TEXT PRIMARY KEY, value INT)"
            if mode == "upsert"
            else "CREATE TABLE rows (key TEXT, value INT)"
        )
    with KilledJob(server, table_pipeline(path, mode)) as job:
        job.assign("w1")
        job.send(["a"])
        job.run_until_idle()
        mark = size(server)
        job.send(["b"])
        job.run_until_idle()
        job.workers.pop("w1").close()  # nobody else remembers
        job._lanes.clear()
        come_back(job, mark)
        job.adopt()
        job.assign("w2")
        job.send(["c"], split="z")
        job.run_until_idle()

        assert job.jobs.state("j") is JobState.FAILED
        assert any("the tables table in sqlite:///" in line and "hold rows up to 3-0/0" in line for line in losses(job))

        job.workers.pop("w2").close()
        job.jobs.losses("j").accept(job.jobs.read("j"))
        job.token = job.leader.hold("j", 600).token
        job.assign("w3")
        anew = FeedAddress(server.url, "j", "words").open().lane("a")
        anew.append(2, a_batch("b"))
        job.run_until_idle()

    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT key, value FROM rows WHERE key <> 'c' ORDER BY key").fetchall()
    assert rows == expected


def test_rows_of_entries_that_are_lost_are_noticed_though_the_step_is_the_last_one(
    server: EmbeddedRedis, tmp_path: Path
) -> None:
    """The commit that followed them may only have been lost; the entries, too, and others stand in their place."""
    path = tmp_path / "test.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE rows (key TEXT, value INT)")
    with KilledJob(server, table_pipeline(path, "insert")) as job:
        mark = size(server)
        job.assign("w1")
        job.send(["a"])
        job.run_until_idle()
        job.workers.pop("w1").close()
        job._lanes.clear()
        come_back(job, mark)
        job.adopt()
        job.assign("w2")
        job.send(["z"], split="z")
        job.run_until_idle()

        assert job.jobs.state("j") is JobState.FAILED
        assert any("hold rows up to 2-0/0, Redis has 1-0/0 (1 record)" in line for line in losses(job))


def test_a_part_that_holds_more_than_redis_knows_halts_the_job_and_is_kept_beside_its_records_afterwards(
    server: EmbeddedRedis, tmp_path: Path
) -> None:
    flow = Pipeline("parts")
    flow.source(read.iterable(list), name="words").sink(write.text(tmp_path / "out", rotate_bytes=30), name="files")
    with KilledJob(server, flow) as job:
        job.assign("w1")
        job.send([f"a{number:02}" for number in range(5)])
        job.run_until_idle()
        mark = size(server)
        job.send([f"b{number:02}" for number in range(9)])
        job.run_until_idle()
        job.workers["w1"].slice(0, 0)
        assert list((tmp_path / "out").glob("part-*"))
        job.workers.pop("w1").close()
        job._lanes.clear()
        come_back(job, mark)
        job.adopt()
        job.assign("w2")

        assert job.jobs.state("j") is JobState.FAILED
        assert any("sink 'files': the part" in line for line in losses(job))

        job.workers.pop("w2").close()
        job.jobs.losses("j").accept(job.jobs.read("j"))
        job.token = job.leader.hold("j", 600).token
        job.assign("w3")
        anew = FeedAddress(server.url, "j", "words").open()
        anew.lane("a").append(6, a_batch(*(f"b{number:02}" for number in range(9))))
        anew.lane("z").append(1, a_batch("z"))
        job.run_to_the_end()
        publish_job(job.jobs, job.jobs.read("j"))

    lines = [line for part in (tmp_path / "out").glob("part-*") for line in part.read_text().split()]
    assert sorted(line for line in set(lines)) == sorted(
        [*(f"a{n:02}" for n in range(5)), *(f"b{n:02}" for n in range(9)), "z"]
    )
    assert all(lines.count(line) == 1 for line in lines if line[0] != "b")
    assert all(lines.count(line) <= 2 for line in lines)


def test_a_leader_of_the_run_before_writes_nothing(job: KilledJob) -> None:
    """Its facts may hold what is lost, as that a source is complete."""
    come_back(job)
    scripts = job._scripts
    leader = Leadership(scripts, "leader-1", "n1")
    insist(scripts.meet)

    with pytest.raises(StaleTerm):
        leader.close_source("j", job.token, job.plan, "words")


# Publishing.


def test_what_is_published_while_redis_loses_its_last_writes_does_not_count_as_the_result(
    server: EmbeddedRedis, tmp_path: Path
) -> None:
    flow = Pipeline("files")
    flow.source(read.iterable(list), name="words").sink(write.text(tmp_path / "out"), name="files")
    with KilledJob(server, flow) as job:
        job.assign("w1")
        job.send(["a"])
        job.run_until_idle()
        mark = size(server)
        job.send(["b"])
        job.run_to_the_end()
        job.jobs.transition("j", JobState.PUBLISHING)
        facts = job.jobs.facts("j")
        come_back(job, mark)
        with Screen(True) as screen, Interrupts() as interrupts:
            at = Server(server.url)
            run = Run(
                RunOptions("flow.py", server.url, 1, 1, "j", "", True),
                job.graph,
                facts.record,
                job._scripts,
                at,
                Workspace(tmp_path),
                NodeProcess(tmp_path, tmp_path),
                screen,
                interrupts,
                Link(at, screen, interrupts),
                0.0,
            )

            with pytest.raises(TailLost, match="the run had seen commits up to 3-1/0"):
                run.finish.publish(facts)

        assert job.jobs.state("j") is JobState.FAILED
        assert "stage 0 partition 0: the run had seen" in losses(job)[0]
