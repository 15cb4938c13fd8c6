"""Tasks of the streaming engine: attempts twice and at once, late ones, partitions that change hands. Without a JVM."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leader.roster import comes_back, hands, stuck_hands
from pipeline import Pipeline, fail, read, retry, write
from pipeline.lifecycle import JobState
from pipeline.publishing import publish_job
from pipeline.settings import Limits
from pipeline.spark.streaming.slices import Slice
from pipeline.store.moving import MovingStore
from stages.partition import SliceEnd
from tests.runtime.harness import LocalJob, assert_sequence, in_sequence, numbered, oracle_of, sequence_pipeline
from tests.spark.streamed import NAME, Streamed

KEYS = [f"k{number}" for number in range(7)]


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    with LocalJob(redis_url, sequence_pipeline(2)) as made:
        yield made


def served_at_once(spark: Streamed, slices: list[Slice]) -> None:
    """Every desk runs every slice, all in threads of their own."""
    errors: list[BaseException] = []
    gate = threading.Barrier(len(spark.desks))

    def attempt(number: int) -> None:
        try:
            gate.wait(10)
            for part in slices[number % 2 :] + slices[: number % 2]:
                spark.desks[number].serve(part, 60.0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(len(spark.desks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads)


def test_a_whole_job_runs_on_it_to_its_end(job: LocalJob, tmp_path: Path) -> None:
    with Streamed(job, tmp_path) as spark:
        spark.take()
        job.send(numbered(KEYS, 200), entry_records=37)
        job.end_input()
        spark.run_until_idle(random.Random(1))

        job.assert_done()
        assert_sequence(job, KEYS, 200)


def test_a_task_stops_where_its_batch_ends_whatever_has_come_since(redis_url: str, tmp_path: Path) -> None:
    with LocalJob(redis_url, sequence_pipeline(2), partitions=1) as job, Streamed(job, tmp_path) as spark:
        spark.take([(0, 0)])
        job.send(numbered(KEYS, 10), "a")
        slices = spark.plan()
        job.send(numbered(KEYS, 10, 11), "a")

        spark.run(slices)

        (first,) = [each for each in slices if each.place == (0, 0) and each.reach.start != each.reach.stop]
        assert job.facts((0, 0)).position == first.reach.stop
        assert job.facts((0, 0)).backlog == 10 * len(KEYS)
        assert spark.plan() != []


def test_a_bound_by_records_cuts_batches_and_loses_none(job: LocalJob, tmp_path: Path) -> None:
    with Streamed(job, tmp_path, most_records=10) as spark:
        spark.take()
        spark.run_until_idle()
        job.send(numbered(KEYS, 20), entry_records=33)
        place = next(place for place in job.places if job.facts(place).backlog)

        spark.run(spark.plan())

        assert job.facts(place).taken == 10
        job.end_input()
        spark.run_until_idle()
        job.assert_done()
        assert_sequence(job, KEYS, 20)


def test_a_batch_that_is_run_again_changes_nothing(job: LocalJob, tmp_path: Path) -> None:
    with Streamed(job, tmp_path) as spark:
        spark.take()
        job.send(numbered(KEYS, 50), entry_records=20)
        slices = spark.plan()
        spark.run(slices)
        stood = {place: job.facts(place).position for place in job.places}

        again = spark.run(slices)

        assert {each.end for each in again} <= {SliceEnd.IDLE.value, SliceEnd.YIELDED.value}
        assert {place: job.facts(place).position for place in job.places if place[0] == 0} == {
            place: position for place, position in stood.items() if place[0] == 0
        }
        spark.run_until_idle()
        assert_sequence(job, KEYS, 50)


def test_attempts_at_once_apply_each_record_once(redis_url: str, tmp_path: Path) -> None:
    limits = Limits(step_records=64)
    with LocalJob(redis_url, sequence_pipeline(2), limits=limits) as job, Streamed(job, tmp_path, desks=3) as spark:
        spark.take()
        for first in range(1, 200, 50):
            job.send(numbered(KEYS, 50, first), entry_records=23)
            while slices := spark.plan():
                served_at_once(spark, slices)
        job.end_input()
        spark.run_until_idle()

        job.assert_done()
        assert_sequence(job, KEYS, 200)


def to_files(folder: Path) -> Pipeline:
    flow = Pipeline("files")
    stream = flow.source(read.iterable([0]), name="in").key_by(lambda pair: pair[0], name="by")
    stream.map(lambda pair: pair[1], name="number").stateful_map(in_sequence, name="oracle").sink(
        write.jsonl(str(folder / "out")), name="out"
    )
    return flow


def test_attempts_at_once_write_each_row_once_and_in_order(redis_url: str, tmp_path: Path) -> None:
    """Their files are in the order of their commits, whoever began first."""
    limits = Limits(step_records=48)
    with (
        LocalJob(redis_url, to_files(tmp_path), limits=limits) as job,
        Streamed(job, tmp_path, desks=3) as spark,
    ):
        spark.take()
        for first in range(1, 400, 40):
            job.send(numbered(KEYS, 40, first), entry_records=29)
            while slices := spark.plan():
                served_at_once(spark, slices)
            if first == 201:  # a worker has it for a while: files of other terms lie between
                job.assign("w0")
                job.run_until_idle()
                spark.take()
        job.end_input()
        spark.run_until_idle()
        job.assert_done()
        assert job.letters() == []
        job.jobs.transition(job.job, JobState.PUBLISHING)
        publish_job(job.jobs, job.jobs.read(job.job))

    rows = defaultdict(list)
    for path in sorted((tmp_path / "out").glob("part-*")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows[row["key"]].append(row["value"])
    assert rows == {key: list(range(1, 401)) for key in KEYS}


def test_tasks_of_a_driver_that_was_frozen_are_refused(job: LocalJob, tmp_path: Path) -> None:
    with Streamed(job, tmp_path) as spark:
        spark.take()
        job.send(numbered(KEYS, 50), entry_records=20)
        spark.run_until_idle()
        job.send(numbered(KEYS, 50, 51), entry_records=20)
        late = spark.plan()

        job.assign("w0")  # its lease is over
        served = [spark.desks[0].serve(part, 60.0) for part in late]

        assert {each.end for each in served} == {"gone"}
        job.run_until_idle()
        spark.member.look()
        assert spark.member.places == []
        job.end_input()
        job.run_until_idle()
        job.assert_done()
        assert_sequence(job, KEYS, 100)


def test_a_policy_that_fails_the_job_does_not_by_what_an_overtaken_task_sees(redis_url: str, tmp_path: Path) -> None:
    """It loads state that another attempt has written since, and its record comes out of sequence there."""
    flow = Pipeline("strict", on_error=fail())
    oracle_of(flow.source(read.iterable([0]), name="in")).sink(write.stream("out"), name="out")
    with LocalJob(redis_url, flow, partitions=1) as job, Streamed(job, tmp_path) as spark:
        spark.take()
        job.send(numbered(["k0"], 5))
        spark.run_until_idle()
        job.send(numbered(["k0"], 20, 6))
        spark.run([each for each in spark.plan() if each.place == (0, 0)])
        (part,) = spark.plan()
        late, other = spark.desks
        overtaken = late._ownership.load_state

        def load(*args: Any) -> Any:
            late._ownership.load_state = overtaken  # type: ignore[method-assign]
            other.serve(part, 60.0)
            return overtaken(*args)

        late._ownership.load_state = load  # type: ignore[method-assign]
        late._worker.owner((1, 0)).cache.clear()  # type: ignore[union-attr]

        served = late.serve(part, 60.0)

        assert job.jobs.state("j") is JobState.RUNNING
        assert served.position == str(part.reach.stop)
        job.end_input()
        spark.run_until_idle()
        job.assert_done()
        assert_sequence(job, ["k0"], 25)


def test_a_task_that_is_overtaken_in_the_middle_of_a_slice_writes_nothing_more(redis_url: str, tmp_path: Path) -> None:
    moves: list[Any] = []

    def work(pair: Any) -> Any:
        if moves and pair == ["k0", 30]:
            moves.pop()()
        return pair

    flow = sequence_pipeline(1, lambda stream: stream.map(work, name="work"))
    with LocalJob(redis_url, flow, partitions=1, limits=Limits(step_records=5)) as job:
        with Streamed(job, tmp_path) as spark:
            spark.take()
            job.send(numbered(["k0"], 60), entry_records=7)
            moves.append(lambda: job.assign("w0", is_unclean=True))

            spark.run_until_idle()
            job.end_input()
            job.run_until_idle()

        job.assert_done()
        assert_sequence(job, ["k0"], 60)


@pytest.mark.parametrize("seed", range(5))
def test_partitions_change_hands_at_random_between_workers_and_spark(redis_url: str, tmp_path: Path, seed: int) -> None:
    """Of one stage, of several, or all; in the middle of their backlog; and nothing is converted."""
    chance = random.Random(seed)
    limits = Limits(step_records=16)
    with (
        LocalJob(redis_url, sequence_pipeline(3), limits=limits) as job,
        Streamed(job, tmp_path, most_records=60) as spark,
    ):
        job.assign("w0")
        sent = 0
        for _ in range(30):
            more = chance.randrange(0, 20)
            job.send(numbered(KEYS, more, sent + 1), entry_records=chance.randrange(1, 40))
            sent += more
            places = chance.sample(job.places, chance.randrange(0, len(job.places) + 1))
            if chance.random() < 0.5:
                spark.take(places)
            else:
                job.assign(chance.choice(["w0", "w1"]), places)
            if chance.random() < 0.8:
                spark.look()
                spark.run(spark.plan(), chance)
            if chance.random() < 0.8:
                job.serve()
        job.end_input()
        for _ in range(50):
            job.run_and_sweep()
            spark.run_until_idle(chance)

        job.assert_done()
        assert_sequence(job, KEYS, sent)


def test_a_full_inbox_stops_it_until_it_is_rung(redis_url: str, tmp_path: Path) -> None:
    limits = Limits(inbox_records=100, step_records=50)
    with (
        LocalJob(redis_url, sequence_pipeline(2), partitions=1, limits=limits) as job,
        Streamed(job, tmp_path) as spark,
    ):
        spark.take([(0, 0)])
        job.assign("w0", [(1, 0), (2, 0)])
        job.run_until_idle()
        ends = []
        for first in (1, 11, 21, 31):
            job.send(numbered(KEYS[:5], 10, first), "a")
            ends += [each.end for each in spark.run(spark.plan())]
        assert ends == ["idle", "idle", "full"]
        assert spark.member.report(spark.ownership)["hand"]["0.0"]["why"] == "full"
        assert spark.plan() == []

        job.run_until_idle()  # the other one drains the inbox, and rings

        job.end_input()
        for _ in range(10):
            spark.run_until_idle()
            job.run_until_idle()
        job.assert_done()
        assert_sequence(job, KEYS[:5], 40)


def test_a_record_that_is_to_be_tried_again_rests_and_the_leader_hears_of_it(redis_url: str, tmp_path: Path) -> None:
    failures = [ValueError("not yet")] * 3

    def doubt(pair: Any) -> Any:
        if pair == ["k1", 3] and failures:
            raise failures.pop()
        return pair

    flow = Pipeline("tried", on_error=retry(3, first_seconds=5.0, most_seconds=5.0))
    stream = flow.source(read.iterable([0]), name="in").map(doubt, name="doubt")
    oracle_of(stream).sink(write.stream("out"), name="out")
    with LocalJob(redis_url, flow, partitions=1) as job, Streamed(job, tmp_path) as spark:
        spark.take()
        job.send(numbered(KEYS, 5))
        spark.run(spark.plan())
        told = spark.member.report(spark.ownership)["hand"]["0.0"]
        assert "not yet" in told["reason"]
        assert [each for each in spark.plan() if each.place == (0, 0)] == []
        for desk in spark.desks:
            desk._worker._paused.clear()  # the time there goes on as well
        job.end_input()
        spark.run_until_idle()
        job.assert_done()
        assert_sequence(job, KEYS, 5)


def test_what_is_asked_for_is_given_away_when_its_batch_has_ended(job: LocalJob, tmp_path: Path) -> None:
    with Streamed(job, tmp_path) as spark:
        spark.take()
        spark.run_until_idle()
        job.worker("w0")
        job.workers["w0"].ownership.heartbeat("{}")
        place = (1, 0)
        token = job.meta(place)["token"]
        job.send(numbered(KEYS, 10))
        slices = spark.plan()
        spark.member.begin(slices)

        assert MovingStore(job._scripts, job.job).want(job.token, (0, 0), job.meta((0, 0))["token"], "ask", aim())
        assert MovingStore(job._scripts, job.job).want(job.token, place, token, "ask", aim())
        spark.look()

        held = {each.place for each in slices}
        assert place not in spark.member.places
        assert ((0, 0) in spark.member.places) == ((0, 0) in held)
        spark.member.end([spark.desks[0].serve(part, 60.0) for part in slices])
        assert (0, 0) not in [each.place for each in spark.plan()]
        spark.look()
        assert (0, 0) not in spark.member.places
        job.end_input()
        for _ in range(5):
            job.look()
            job.run_until_idle()
            spark.run_until_idle()
        job.assert_done()
        assert_sequence(job, KEYS, 10)


def test_what_is_asked_for_is_given_away_when_its_slice_has_ended_while_others_of_the_batch_run(
    job: LocalJob, tmp_path: Path
) -> None:
    with Streamed(job, tmp_path) as spark:
        spark.take()
        spark.run_until_idle()
        job.worker("w0")
        job.workers["w0"].ownership.heartbeat("{}")
        job.send(numbered(KEYS, 10))
        spark.run(spark.plan())
        slices = spark.plan()
        first, *others = slices
        assert others, "each partition of the second stage has some"
        spark.member.begin(slices)
        assert MovingStore(job._scripts, job.job).want(job.token, first.place, first.token, "ask", aim())
        spark.look()
        assert first.place in spark.member.places
        served = spark.desks[0].serve(first, 60.0)
        spark.look()

        assert first.place not in spark.member.places
        assert {each.place for each in others} <= set(spark.member.places)
        full = replace(served, end=SliceEnd.FULL.value)
        spark.member.end([full, *(spark.desks[0].serve(part, 60.0) for part in others)])
        assert first.name not in spark.member.report(spark.ownership)["hand"]
        job.end_input()
        for _ in range(5):
            job.look()
            job.run_until_idle()
            spark.run_until_idle()
        job.assert_done()
        assert_sequence(job, KEYS, 10)


def aim() -> tuple[str, str, str, str]:
    return "w0", "1-a", "nonce", "levelling"


def test_a_batch_that_waits_for_a_core_is_not_stuck_and_its_commits_are_seen(redis_url: str, tmp_path: Path) -> None:
    with (
        LocalJob(redis_url, sequence_pipeline(2), partitions=1) as job,
        Streamed(job, tmp_path, most_records=5) as spark,
    ):
        spark.take([(0, 0)])
        spark.run_until_idle()
        job.send(numbered(KEYS, 10), "a")
        (part,) = spark.plan()
        spark.member.begin([part])
        spark.now += 3_600.0
        spark.beat()

        facts = next(each for each in job.jobs.facts("j").workers if each.name == NAME)
        assert stuck_hands(facts, 60.0) == []
        assert hands(facts)[0].age_ms == 3_600_000
        assert comes_back(facts) == {"0.0"}

        spark.desks[0].serve(part, 60.0)
        spark.beat()
        facts = next(each for each in job.jobs.facts("j").workers if each.name == NAME)
        (hand,) = hands(facts)
        assert (hand.age_ms, hand.position) == (0, str(job.facts((0, 0)).position))
        assert hand.position != str(part.reach.start)
