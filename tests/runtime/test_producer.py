"""Producers against a job stepped by hand: order, retries, ids, restarts, full inboxes, ends, forks and event loops."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from leader.duties.visitors import Visitors
from pipeline import Pipeline, read, write
from pipeline.codec import decode_batch
from pipeline.embedded.redis import EmbeddedRedis
from pipeline.errors import (
    EncodingError,
    InboxClosed,
    InboxFull,
    ProducerError,
    StaleSender,
    StoreError,
    StoreUnavailable,
    TailLost,
    UnknownJob,
    UnknownSender,
)
from pipeline.facts import JobFacts
from pipeline.lifecycle import JobState
from pipeline.producer import AsyncProducer, Durability, Producer
from pipeline.settings import Limits
from pipeline.store import keys
from tests.runtime.harness import LocalJob, assert_sequence, oracle_of

ROOT = Path(__file__).parents[2]


def events(**options: Any) -> Pipeline:
    """Source `in` of producers, with [key, number] through the oracle -> stream `out`."""
    flow = Pipeline("events")
    oracle_of(flow.source(read.producer(**options), name="in")).sink(write.stream("out"), name="out")
    return flow


def plain(**options: Any) -> Pipeline:
    """Source `in` of producers -> stream `out`."""
    flow = Pipeline("plain")
    flow.source(read.producer(**options), name="in").sink(write.stream("out"), name="out")
    return flow


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with LocalJob(redis_url, plain()) as made:
        made.assign()
        yield made


@pytest.fixture
def make(redis_url: str) -> Iterator[Callable[..., Producer]]:
    """Makes producers for the job j, with short waits; whatever holds records at the end is dropped."""
    made: list[Producer] = []

    def producer(name: str | None = None, **options: Any) -> Producer:
        options = {"linger_seconds": 0.001, "full_timeout_seconds": 10.0, **options}
        made.append(Producer("j", redis_url, name=name, **options))
        return made[-1]

    yield producer
    for each in made:
        try:
            each.close(0.0)
        except StoreError:
            continue


def wait_until(predicate: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        threading.Event().wait(0.002)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "celeriac-producer"]


def senders(job: LocalJob) -> list[bytes]:
    return sorted(name for name in job.client.hkeys(keys.senders(job.job)) if name.startswith(b"n:"))


def logged(job: LocalJob) -> dict[bytes, bytes]:
    """The dedup logs of the entry stage."""
    found = {}
    for partition in range(job.plan.stages[0].partitions):
        found.update(job.client.hgetall(keys.log(job.job, 0, partition)))
    return found


def send_numbers(producer: Producer, accepted: list[int]) -> None:
    """0, 1, 2, ... under one key, until one is refused."""
    for number in range(100_000):
        producer.send("k", number)
        accepted.append(number)


# Order, batches, what arrives.


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("batch_records", [1, 7, 500])
def test_records_of_one_key_arrive_in_order_and_once(
    redis_url: str, make: Callable[..., Producer], lanes: int, batch_records: int
) -> None:
    names = ["a", "b", 3, b"bytes", ("tuple", 1)]
    with LocalJob(redis_url, events()) as job:
        job.assign()
        producer = make(lanes=lanes, batch_records=batch_records)

        for number in range(1, 101):
            for key in names:
                producer.send(key, [str(key), number])
        producer.flush()
        job.run_until_idle()

        assert producer.pending == 0
        assert_sequence(job, [str(key) for key in names], 100)


def test_flush_sends_at_once_what_would_wait_for_a_batch_to_fill(job: LocalJob, make: Callable[..., Producer]) -> None:
    producer = make(linger_seconds=1000.0)
    producer.send("k", "value")

    durability = producer.flush()
    job.run_until_idle()

    assert durability in set(Durability)
    assert job.values() == ["value"]


def test_a_record_is_sent_when_it_has_lingered_though_nobody_flushes(
    job: LocalJob, make: Callable[..., Producer]
) -> None:
    producer = make(linger_seconds=0.01)
    producer.send("k", "value")

    wait_until(lambda: not producer.pending)
    job.run_until_idle()

    assert job.values() == ["value"]


def test_a_full_batch_does_not_wait_for_the_linger(job: LocalJob, make: Callable[..., Producer]) -> None:
    by_number = make(linger_seconds=1000.0, lanes=1, batch_records=3)
    by_size = make(linger_seconds=1000.0, lanes=1, batch_bytes=10_000)
    for number in range(3):
        by_number.send("k", number)
    by_size.send("k", "x" * 10_000)

    wait_until(lambda: not by_number.pending and not by_size.pending)
    job.run_until_idle()

    assert len(job.values()) == 4


def test_values_come_as_they_were_sent_and_with_keys_as_a_dict(redis_url: str, make: Callable[..., Producer]) -> None:
    flow = plain(with_keys=True)
    with LocalJob(redis_url, flow) as job:
        job.assign()
        producer = make()
        producer.send("user-1", {"paid": 3})
        producer.send(None, None)
        producer.flush()
        job.run_until_idle()

        assert sorted(map(repr, job.values())) == sorted(
            map(repr, [{"key": "user-1", "value": {"paid": 3}}, {"key": None, "value": None}])
        )


def test_event_times_travel_with_the_records(job: LocalJob, make: Callable[..., Producer]) -> None:
    producer = make(lanes=1)
    before = time.time_ns() // 1_000_000
    producer.send("k", "old", timestamp=5)
    producer.send("k", "new")
    producer.flush()

    entries = [entry for place in job.places for entry in job.client.xrange(keys.inbox("j", *place))]
    times = [moment for _, fields in entries for moment in decode_batch(fields[b"d"]).times or ()]
    assert times[0] == 5
    assert before <= times[1] <= time.time_ns() // 1_000_000
    job.run_until_idle()
    assert job.values() == ["old", "new"]


def test_records_without_a_key_are_spread_over_the_lanes(job: LocalJob, make: Callable[..., Producer]) -> None:
    producer = make("spread", lanes=4)
    for number in range(8):
        producer.send(None, number)
    producer.flush()

    numbers = [logged(job)[number] for number in (b"1", b"2", b"3", b"4")]
    assert numbers == [b"2", b"2", b"2", b"2"]


def test_many_threads_may_send_and_flush_at_once(redis_url: str, make: Callable[..., Producer]) -> None:
    with LocalJob(redis_url, events()) as job:
        job.assign()
        producer = make(batch_records=5)

        def work(key: str) -> None:
            for number in range(1, 201):
                producer.send(key, [key, number])
                if number % 50 == 0:
                    producer.flush()

        workers = [threading.Thread(target=work, args=(f"k{number}",)) for number in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        job.run_until_idle()

        assert producer.pending == 0
        assert_sequence(job, [f"k{number}" for number in range(8)], 200)


def test_a_record_that_is_refused_leaves_the_producer_of_use(job: LocalJob, make: Callable[..., Producer]) -> None:
    producer = make()
    with pytest.raises(EncodingError, match=r"^value\.tags: "):
        producer.send("k", {"tags": {1, object()}})

    producer.send("k", "good")
    producer.flush()
    job.run_until_idle()

    assert job.values() == ["good"]


# Ids.


def test_a_record_sent_again_with_its_id_is_applied_once(job: LocalJob, make: Callable[..., Producer]) -> None:
    first, second = make(), make()
    for number in range(100):
        first.send(f"k{number}", number, id=f"evt-{number}")
    first.flush()
    for number in range(50, 150):
        second.send("another key", number, id=f"evt-{number}")
    second.send("k", "without")
    second.flush()

    job.run_until_idle()

    assert sorted(value for value in job.values() if value != "without") == list(range(150))
    assert sum(facts.duplicate for facts in job.jobs.facts("j").partitions) == 50
    job.assert_drained()


def test_a_batch_of_nothing_but_duplicates_does_not_stop_the_job(job: LocalJob, make: Callable[..., Producer]) -> None:
    producer = make(lanes=1)
    for _ in range(3):
        for number in range(20):
            producer.send("k", number, id=f"evt-{number}")
        producer.flush()
        job.run_until_idle()

    assert job.values() == list(range(20))
    job.assert_drained()


PROGRAM = """
import sys
from pipeline.producer import Producer

producer = Producer("j", sys.argv[1], linger_seconds=0.0, batch_records=10)
for number in range(1, int(sys.argv[2]) + 1):
    for key in "abc":
        producer.send(key, [key, number], id=f"{key}-{number}")
    if number % 20 == 0:
        print(number, flush=True)
producer.close()
"""


def test_a_producer_that_is_killed_and_sends_everything_again_with_ids_is_applied_once(redis_url: str) -> None:
    with LocalJob(redis_url, events()) as job:
        job.assign()
        command = [sys.executable, "-c", PROGRAM, redis_url]
        for lines in (3, 10):
            with subprocess.Popen([*command, "100000"], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
                assert process.stdout is not None
                for _ in range(lines):
                    process.stdout.readline()
                process.kill()
        job.run_until_idle()

        taken = max((values[-1] for values in job.by_key().values()), default=0)
        subprocess.run([*command, str(taken + 50)], check=True, cwd=ROOT, capture_output=True, timeout=60)
        job.run_until_idle()

        assert_sequence(job, "abc", taken + 50)


# Names and restarts.


def test_a_producer_of_the_same_name_goes_on_behind_what_was_taken_and_fences_off_the_older(
    job: LocalJob, make: Callable[..., Producer]
) -> None:
    old = make("web-1", lanes=1)
    old.send("k", "a")
    old.send("k", "b")
    old.flush()

    new = make("web-1", lanes=1)
    new.send("k", "c")
    new.flush()
    old.send("k", "zombie")
    with pytest.raises(StaleSender, match="1 record handed over before may not have been taken"):
        old.flush()
    with pytest.raises(StaleSender):
        old.send("k", "more")

    job.run_until_idle()
    assert job.values() == ["a", "b", "c"]
    assert senders(job) == [b"n:0/in/web-1/0"]
    assert logged(job)[b"1"] == b"3"


def test_a_named_producer_stays_known_after_its_end_and_an_unnamed_one_leaves_nothing(
    job: LocalJob, make: Callable[..., Producer]
) -> None:
    for producer in (make("web-1", lanes=1), make(), make()):
        producer.send("k", "value")
        producer.close()

    wait_until(lambda: not threads())
    assert senders(job) == [b"n:0/in/web-1/0"]
    assert set(logged(job)) == {b"1", b"e:1", b"gone"}
    assert not job.client.exists(keys.visitors("j"))
    job.run_until_idle()
    assert len(job.values()) == 3


def watched(duty: Visitors, facts: JobFacts, job: LocalJob, seconds: range = range(0, 1200, 10)) -> int:
    """How many senders the duty forgets while it looks every ten seconds."""
    rounds = (replace(facts, now_ms=facts.now_ms + 1000 * second) for second in seconds)
    return sum(duty.run_once(each, job.token).get("visitors_forgotten", 0) for each in rounds)


def test_after_a_long_outage_of_redis_a_producer_has_time_to_say_that_it_is_there(
    job: LocalJob, make: Callable[..., Producer]
) -> None:
    make().send("k", 1)
    facts, duty = job.jobs.facts("j"), Visitors(job.leader)
    assert watched(duty, facts, job, range(0, 1200, 10)) == 0
    for visitor in job.client.zrange(keys.visitors("j"), 0, -1):
        job.client.zincrby(keys.visitors("j"), -7_200_000, visitor)  # nobody could say anything for two hours

    assert watched(duty, facts, job, range(8400, 9200, 10)) == 0
    assert watched(duty, facts, job, range(9200, 9400, 10)) == 4


def test_an_unnamed_producer_that_was_killed_is_forgotten_by_the_leader_and_a_living_one_is_not(
    job: LocalJob, make: Callable[..., Producer], redis_url: str
) -> None:
    make().send("k", 1)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, redis_url, "100000"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    facts = job.jobs.facts("j")
    visitors = job.client.zrange(keys.visitors("j"), 0, -1)
    assert len(visitors) == 8
    assert watched(Visitors(job.leader), facts, job) == 0
    for visitor in sorted(visitors, key=lambda each: int(each.split()[1]))[4:]:
        job.client.zincrby(keys.visitors("j"), -3_700_000, visitor)

    duty = Visitors(job.leader)
    assert watched(duty, facts, job) == 4
    assert watched(duty, facts, job) == 0

    assert len(senders(job)) == 4
    known = [*(b"%d" % n for n in range(1, 5)), *(b"e:%d" % n for n in range(1, 5))]
    assert sorted(name for name in logged(job) if name != b"gone") == sorted(known)


# Faults of the way.


def test_a_reply_that_was_lost_is_asked_for_again_and_nothing_is_doubled(
    job: LocalJob, make: Callable[..., Producer]
) -> None:
    """The client is cut off again and again, mostly in the middle of an append; ever later, so that a busy machine, on
    which it takes long to connect, comes to the end as well."""
    producer = make(batch_records=3)
    is_over = threading.Event()

    def cut() -> None:
        seconds = 0.003
        while not is_over.wait(seconds):
            job.client.client_kill_filter(_type="normal", skipme=True)
            seconds *= 1.02

    cutter = threading.Thread(target=cut)
    producer.send("k", 0)
    producer.flush()
    cutter.start()
    try:
        for number in range(1, 2_000):
            producer.send("k", number)
        wait_until(lambda: producer.pending < 100)
    finally:
        is_over.set()
        cutter.join()
    producer.flush()
    job.run_until_idle()

    assert job.values() == list(range(2_000))


def test_a_redis_that_is_away_is_waited_for_and_what_was_handed_over_is_kept(tmp_path: Path) -> None:
    with EmbeddedRedis.start(tmp_path / "redis", fsync="always") as server, LocalJob(server.url, plain()) as job:
        job.assign()
        with Producer("j", server.url, buffer_bytes=6_000, full_timeout_seconds=0.1) as producer:
            producer.send("k", "first")
            assert producer.flush() is Durability.ALWAYS
            os.kill(server.pid, signal.SIGKILL)
            wait_until(lambda: not server.is_alive())

            accepted: list[int] = []
            with pytest.raises(StoreUnavailable, match="buffer stayed full"):
                send_numbers(producer, accepted)
            with pytest.raises(StoreUnavailable, match="not taken within"):
                producer.flush()
            assert producer.pending == len(accepted)
            server.restart()
            job.adopt()
            assert producer.flush(30.0) is Durability.ALWAYS
        job.assign()
        job.run_and_sweep()

        assert job.values() == ["first", *accepted]


def test_a_server_without_the_job_is_told_at_the_first_send_and_a_job_that_comes_later_is_found(
    redis_url: str, make: Callable[..., Producer]
) -> None:
    producer = make()
    with pytest.raises(UnknownJob):
        producer.send("k", "early")

    with LocalJob(redis_url, plain()) as job:
        job.assign()
        producer.send("k", "late")
        producer.flush()
        job.run_until_idle()
        assert job.values() == ["late"]


def test_a_redis_that_came_back_without_its_last_records_ends_the_producer_and_leaves_no_gap(
    job: LocalJob, make: Callable[..., Producer]
) -> None:
    producer = make("web-1", lanes=1)
    for number in range(10):
        producer.send("k", number)
    producer.flush()
    job.is_tampered = True
    job.client.hset(keys.log("j", 0, 1), "1", 7)
    before = [job.client.xrange(keys.inbox("j", *place)) for place in job.places]

    producer.send("k", 10)
    with pytest.raises(TailLost, match=r"web-1/0 had acknowledged up to 10, Redis has 7 \(3 records\)"):
        producer.flush()

    assert [job.client.xrange(keys.inbox("j", *place)) for place in job.places] == before


# Full.


def test_a_job_that_is_too_slow_makes_sending_wait_and_then_fail_and_loses_nothing(
    redis_url: str, make: Callable[..., Producer]
) -> None:
    with LocalJob(redis_url, plain(), partitions=1, limits=Limits(inbox_records=40)) as job:
        job.assign()
        producer = make(lanes=2, batch_records=10, buffer_bytes=20_000, full_timeout_seconds=0.2)
        accepted: list[int] = []
        with pytest.raises(InboxFull, match=r"buffer stayed full for 0\.2 s"):
            send_numbers(producer, accepted)
        assert not producer.try_send("k", "no room")
        assert job.facts((0, 0)).backlog <= 50
        with pytest.raises(InboxFull, match="not taken within"):
            producer.flush(0.0)

        while producer.pending:
            job.run_until_idle()
        producer.flush()
        job.run_until_idle()

        assert job.values() == accepted


def test_one_full_entry_partition_does_not_hold_up_the_lanes_of_another(
    redis_url: str, make: Callable[..., Producer]
) -> None:
    with LocalJob(redis_url, plain(), limits=Limits(inbox_records=100)) as job:
        job.assign()
        job.is_tampered = True
        job.client.hset(keys.meta("j", 0, 0), "head", 1_000_000)
        producer = make(lanes=2)

        for number in range(20):
            producer.send(None, number)

        wait_until(lambda: producer.pending == 10)
        assert sorted(logged(job)[sender] for sender in (b"1", b"2")) == [b"0", b"10"]


@pytest.mark.usefixtures("job")
def test_a_sender_that_waits_for_room_does_not_wait_for_a_batch_to_fill(make: Callable[..., Producer]) -> None:
    producer = make(linger_seconds=1000.0, buffer_bytes=3_000)

    for number in range(100):
        producer.send("k", number)

    assert producer.pending < 10


def test_a_record_larger_than_the_buffer_is_sent_by_itself(job: LocalJob, make: Callable[..., Producer]) -> None:
    producer = make(buffer_bytes=1_000, lanes=1)

    for size in (10, 5_000, 10, 100_000):
        producer.send("k", "x" * size)
    producer.flush()
    job.run_until_idle()

    assert [len(value) for value in job.values()] == [10, 5_000, 10, 100_000]


# The end of the job.


def test_a_job_that_drains_takes_no_more_and_what_was_flushed_comes_out(
    job: LocalJob, make: Callable[..., Producer]
) -> None:
    producer = make()
    producer.send("k", "in time")
    producer.flush()
    job.jobs.transition("j", JobState.DRAINING)

    producer.send("k", "late")
    with pytest.raises(InboxClosed, match="draining or suspended, or has ended; 1 record"):
        producer.flush()
    with pytest.raises(InboxClosed):
        producer.send("k", "later")
    with pytest.raises(InboxClosed):
        make().send("k", "a new one")
    with pytest.raises(InboxClosed):
        producer.close()

    job.run_to_the_end()
    assert job.values() == ["in time"]


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_job_that_was_removed_is_unknown_and_is_never_made_anew(
    job: LocalJob, make: Callable[..., Producer], is_idle: bool
) -> None:
    producer = make()
    if not is_idle:
        producer.send("k", "before")
        producer.flush()
    job.jobs.erase("j")

    def send_late() -> None:
        producer.send("k", "late", id="x")
        producer.flush()

    with pytest.raises(UnknownJob):
        send_late()
    with pytest.raises(UnknownJob):
        send_late()

    assert list(job.client.scan_iter("celeriac:{j}*")) == []


def test_a_sender_that_was_forgotten_is_refused_and_never_made_anew(
    job: LocalJob, make: Callable[..., Producer]
) -> None:
    producer = make("web-1", lanes=1)
    producer.send("k", "a")
    producer.flush()
    job.is_tampered = True
    job.client.hdel(keys.log("j", 0, 1), "1", "e:1")

    producer.send("k", "b")
    with pytest.raises(UnknownSender):
        producer.flush()

    assert logged(job) == {}


def test_a_source_that_reads_files_takes_no_records(redis_url: str, make: Callable[..., Producer]) -> None:
    flow = Pipeline("files")
    flow.source(read.iterable([1]), name="in").sink(write.stream("out"), name="out")
    with LocalJob(redis_url, flow), pytest.raises(ProducerError, match="takes records"):
        make().send("k", 1)


# Ends of the producer.


def test_a_closed_producer_takes_nothing_and_may_be_closed_again(job: LocalJob, make: Callable[..., Producer]) -> None:
    producer = make()
    producer.send("k", "value")
    producer.close()
    producer.close()

    for call in (lambda: producer.send("k", 1), lambda: producer.try_send("k", 1), producer.flush):
        with pytest.raises(ProducerError, match="closed"):
            call()
    wait_until(lambda: not threads())
    job.run_until_idle()
    assert job.values() == ["value"]


def test_a_producer_that_never_sent_has_connected_to_nothing() -> None:
    with Producer("j", "redis://127.0.0.1:1/0") as producer:
        assert not producer.try_send("k", 1)
        assert producer.pending == 0


def test_closing_gives_up_after_its_timeout_and_says_how_many_records_are_lost(
    redis_url: str, make: Callable[..., Producer]
) -> None:
    with LocalJob(redis_url, plain(), partitions=1, limits=Limits(inbox_records=10)):
        producer = make(lanes=1, batch_records=10)
        for number in range(50):
            producer.send("k", number)

        with pytest.raises(InboxFull, match=r"^40 records not taken within 0\.3 s"):
            producer.close(0.3)

        wait_until(lambda: not threads())


def test_a_producer_that_nobody_holds_any_more_sends_what_it_has_and_ends_its_thread(
    job: LocalJob, redis_url: str
) -> None:
    producer = Producer("j", redis_url, linger_seconds=1000.0)
    producer.send("k", "value")

    del producer
    gc.collect()

    wait_until(lambda: not threads())
    job.run_until_idle()
    assert job.values() == ["value"]


def test_a_program_that_ends_without_closing_has_sent_everything(job: LocalJob, redis_url: str) -> None:
    program = """
import sys
from pipeline.producer import Producer
producer = Producer("j", sys.argv[1], linger_seconds=1000.0)
for number in range(1000):
    producer.send("k", number)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, redis_url], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr) == (0, "")
    job.run_until_idle()
    assert job.values() == list(range(1000))


# Forks.

FORKING = """
import os, sys, warnings
from pipeline.producer import Producer

warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of every fork in a process with threads
name = sys.argv[2] or None
producer = Producer("j", sys.argv[1], name=name, lanes=1, linger_seconds=1000.0)
producer.send("parent", ["parent", 1])
children = []
for child in range(2):
    pid = os.fork()
    if not pid:
        try:
            assert producer.pending == 0, "the parent's records are the parent's"
            for number in range(1, 21):
                producer.send(f"child-{child}", [f"child-{child}", number])
            producer.flush()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
producer.send("parent", ["parent", 2])
producer.close()
"""


@pytest.mark.parametrize("name", ["", "web-1"])
def test_a_forked_child_sends_by_itself_and_leaves_the_parents_records_alone(redis_url: str, name: str) -> None:
    with LocalJob(redis_url, events()) as job:
        job.assign()

        done = subprocess.run(
            [sys.executable, "-c", FORKING, redis_url, name], cwd=ROOT, capture_output=True, text=True, timeout=60
        )

        assert (done.returncode, done.stderr) == (0, "")
        job.run_until_idle()
        assert job.by_key() == {
            "parent": [1, 2],
            "child-0": list(range(1, 21)),
            "child-1": list(range(1, 21)),
        }
        assert job.letters() == []


# Event loops and Celery.


def test_an_event_loop_sends_and_flushes(redis_url: str) -> None:
    async def story() -> None:
        async with AsyncProducer(Producer("j", redis_url, linger_seconds=0.001)) as producer:

            async def client(key: str) -> None:
                for number in range(1, 101):
                    await producer.send(key, [key, number])
                    if number % 25 == 0:
                        assert await producer.flush() in set(Durability)

            await asyncio.gather(*(client(f"k{number}") for number in range(5)))

    with LocalJob(redis_url, events()) as job:
        job.assign()
        asyncio.run(story())
        job.run_until_idle()
        assert_sequence(job, [f"k{number}" for number in range(5)], 100)


def test_a_full_buffer_does_not_block_the_loop_and_sends_that_wait_keep_their_order(redis_url: str) -> None:
    async def story(job: LocalJob) -> None:
        inner = Producer("j", redis_url, buffer_bytes=5_000, batch_records=5, linger_seconds=0.0)
        async with AsyncProducer(inner) as producer:
            sends = [asyncio.create_task(producer.send("k", ["k", number])) for number in range(1, 201)]
            turns = 0
            while not all(send.done() for send in sends):
                turns += 1
                if turns > 200:  # the loop turns though every send waits; only now may the job work
                    job.run_until_idle()
                await asyncio.sleep(0)
            await asyncio.gather(*sends)
            flush = asyncio.create_task(producer.flush())
            while not flush.done():
                job.run_until_idle()
                await asyncio.sleep(0)
            await flush

    with LocalJob(redis_url, events(), partitions=1, limits=Limits(inbox_records=20)) as job:
        job.assign()
        asyncio.run(story(job))
        job.run_until_idle()
        assert_sequence(job, ["k"], 200)


def test_the_errors_of_a_producer_reach_the_loop(redis_url: str) -> None:
    async def story() -> None:
        producer = AsyncProducer(Producer("nobody", redis_url))
        with pytest.raises(UnknownJob):
            await producer.send("k", 1)
        with pytest.raises(UnknownJob):
            await producer.flush()
        await producer.close()
        with pytest.raises(ProducerError):
            await producer.send("k", 1)

    asyncio.run(story())


def test_a_celery_task_sends_and_is_run_twice_without_harm(job: LocalJob, redis_url: str) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    producer = Producer("j", redis_url)

    @app.task(shared=False)
    def pay(order: int) -> str:
        producer.send(f"order-{order}", {"paid": order}, id=f"paid-{order}")
        return producer.flush().value

    for order in (1, 2, 1):
        assert pay.apply(args=(order,)).get() in set(Durability)
    producer.close()

    job.run_until_idle()
    assert sorted(value["paid"] for value in job.values()) == [1, 2]
