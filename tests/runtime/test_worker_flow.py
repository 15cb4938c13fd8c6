"""Full inboxes, the end of input, control in its place, tickets that are lost: the job never stands still."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from pipeline import Pipeline, count, read, write
from pipeline.codec import encode_batch
from pipeline.lifecycle import JobState
from pipeline.messages import Barrier, Data, EndOfInput, Header, Table, Watermark, encode_header
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store import keys
from stages import partition
from stages.partition import SliceEnd
from tests.runtime.harness import (
    LocalJob,
    SteppingClock,
    assert_sequence,
    numbered,
    sequence_pipeline,
)
from tests.sampling import calls, some

KEYS = ["a", "b", "c", "d"]


def append(job: LocalJob, place: tuple[int, int], header: Header, batch: Batch | None = None) -> None:
    payload = encode_batch(batch) if batch is not None else None
    job.append_entry(place, encode_header(header), payload, len(batch) if batch is not None else 0)


# Full.


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("names", [["w0"], ["w0", "w1"]])
def test_tiny_inboxes_slow_the_job_down_and_never_stop_it(redis_url: str, stages: int, names: list[str]) -> None:
    limits = Limits(inbox_records=10, step_records=7)
    with LocalJob(redis_url, sequence_pipeline(stages), limits=limits, clock=SteppingClock(0.001)) as job:
        for number, place in enumerate(job.places):
            job.assign(names[number % len(names)], [place])
        highest: Counter[tuple[int, int]] = Counter()
        for number in range(60):
            job.send(numbered(KEYS, 1, first=number + 1))
            while job.facts(job.places[1]).backlog > 5 or job.facts(job.places[0]).backlog > 5:
                assert job.serve(), "nobody has a ticket, yet there is work"
                for facts in job.jobs.facts(job.job).partitions:
                    place = (facts.stage, facts.partition)
                    highest[place] = max(highest[place], facts.backlog)
        job.run_to_the_end()

        assert_sequence(job, KEYS, 60)
        # One commit of at most 7 records may overshoot.
        assert max(highest.values()) < 10 + 7


def test_a_step_that_finds_its_target_full_is_kept_and_not_computed_again(redis_url: str) -> None:
    calls: list[int] = []

    def note(pair: list[Any]) -> list[Any]:
        calls.append(pair[1])
        return pair

    flow = sequence_pipeline(between=lambda stream: stream.map(note, name="note"))
    limits = Limits(inbox_records=20, step_records=8)
    with LocalJob(redis_url, flow, partitions=1, limits=limits) as job:
        job.assign("w0", [(0, 0)])
        for number in range(10):
            job.send(numbered(KEYS, 2, first=2 * number + 1), entry_records=5)
            job.run_until_idle()
            if job.facts((0, 0)).ring == "w":
                break
        held = list(calls)
        waiting = job.client.hgetall(keys.waiting("j", 1, 0))

        assert job.slice("w0", (0, 0)) is SliceEnd.FULL
        assert job.slice("w0", (0, 0)) is SliceEnd.FULL
        assert calls == held
        assert waiting == {keys.meta("j", 0, 0).encode(): b"1"}
        assert job.worker().hand.report(0.0)["hand"]["0.0"]["why"] == "full"
        assert 20 <= job.facts((1, 0)).backlog < 28

        job.assign("w1", [(1, 0)])
        job.run_to_the_end()

        assert sorted(calls) == sorted(number for _, number in numbered(KEYS, 2 * (number + 1)))
        assert_sequence(job, KEYS, 2 * (number + 1))
        assert job.worker().hand.report(0.0) == {"slices": [], "hand": {}}


def test_a_full_output_stream_holds_the_job_until_its_reader_goes_on(redis_url: str) -> None:
    limits = Limits(inbox_records=10, step_records=4)
    with LocalJob(redis_url, sequence_pipeline(), partitions=1, limits=limits) as job:
        job.assign()
        read_on = job.drain_outputs
        job.drain_outputs = lambda: None  # type: ignore[method-assign]
        for number in range(4):
            job.send(numbered(KEYS, 1, first=number + 1))
            job.run_until_idle()
        assert job.facts((1, 0)).ring == "w"
        assert job.client.xlen(keys.out("j", "out")) < 8

        job.drain_outputs = read_on  # type: ignore[method-assign]
        job.drain_outputs()
        job.run_to_the_end()

        assert_sequence(job, KEYS, 4)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", some(range(6)))
def test_any_order_of_slices_ends_with_tiny_inboxes(redis_url: str, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    limits = Limits(inbox_records=rng.choice([5, 12]), step_records=rng.choice([1, 6]), inbox_low=rng.choice([0, 0.5]))
    with LocalJob(redis_url, sequence_pipeline(3), limits=limits, clock=SteppingClock(0.002)) as job:
        for place in job.places:
            job.assign(rng.choice(["w0", "w1"]), [place])
        left = numbered(KEYS, 15)
        for _ in range(5000):
            place = rng.choice(job.places)
            if job.pop_ticket(place):
                name = job.owner_of(place)
                assert name is not None
                job.slice(name, place)
            job.drain_outputs()
            if left and sum(job.facts((0, number)).backlog for number in (0, 1)) < 2:
                job.send([left.pop(0)])
            elif not left and all(facts.at_end for facts in job.jobs.facts(job.job).partitions):
                break
        job.run_to_the_end()

        assert_sequence(job, KEYS, 15)


def test_ten_thousand_outputs_of_one_record_pass_through_a_tiny_inbox(redis_url: str) -> None:
    flow = Pipeline("burst")
    (
        flow.source(read.iterable([0]), name="in")
        .flat_map(lambda n: [[i % 7, i] for i in range(n)], name="many")
        .key_by(lambda pair: pair[0], name="k")
        .aggregate(count(), name="n")
        .sink(write.stream("out"), name="out")
    )
    limits = Limits(inbox_records=100, entry_bytes=4000, step_records=500)
    with LocalJob(redis_url, flow, limits=limits) as job:
        job.assign()
        job.send([10_000, 1, 10_000])
        job.run_to_the_end()

        assert sum(job.newest().values()) == 20_001
        assert job.letters() == []


# Slow user code.


class UserClock:
    """Goes on only while user code runs."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_step_whose_function_becomes_slow_is_cut_short_inside_its_entry(redis_url: str, is_failing: bool) -> None:
    clock = UserClock()

    def work(pair: list[Any]) -> list[Any]:
        clock.now += 0.05 if pair[1] > 3000 else 1e-6
        if is_failing and pair[1] == 3600:
            raise ValueError("no")
        return pair

    flow = sequence_pipeline(between=lambda stream: stream.map(work, name="work"))
    with LocalJob(redis_url, flow, partitions=1, clock=clock) as job:
        job.send(numbered(["a"], 4000), entry_records=2500)
        job.worker()
        taken: list[int] = []
        real = job.scripts["w0"].run

        def watch(name: str, keys_: Any, args: Any) -> list[Any]:
            if name == "commit" and args[6] == "0.0":
                taken.append(args[15])
            return real(name, keys_, args)

        job.scripts["w0"].run = watch  # type: ignore[method-assign, assignment]
        job.assign()
        job.run_to_the_end()

        behind = [sum(taken[: i + 1]) - 3000 for i in range(len(taken))]
        first = next(i for i, records in enumerate(behind) if records > 0)
        # One part of the first slow step; after it the pace knows.
        assert behind[first] <= 512
        assert max(taken[first + 1 :]) <= 4
        assert sum(taken) == 4000
        if is_failing:
            assert job.dead_values()[0] == ["a", 3600]
        else:
            assert_sequence(job, ["a"], 4000)


def test_timers_whose_operators_are_slow_do_not_all_fire_in_one_step(redis_url: str) -> None:
    clock = UserClock()
    flow = Pipeline("slow_timers")
    keyed = flow.source(read.iterable([0]), name="in").key_by(lambda pair: pair[0], name="by").last(name="last")

    def work(pair: list[Any]) -> list[Any]:
        clock.now += 0.05
        return pair

    keyed.map(work, name="work").sink(write.stream("out"), name="out")
    names = [f"k{number}" for number in range(100)]
    with LocalJob(redis_url, flow, partitions=1, clock=clock) as job:
        job.assign()
        job.send(numbered(names, 1))
        job.run_until_idle()
        assert clock.now == 0.0
        longest, real = 0.0, job.scripts["w0"].run
        since = [0.0]

        def watch(name: str, keys_: Any, args: Any) -> list[Any]:
            nonlocal longest
            longest, since[0] = max(longest, clock.now - since[0]), clock.now
            return real(name, keys_, args)

        job.scripts["w0"].run = watch  # type: ignore[method-assign]
        job.run_to_the_end()

        assert sorted(job.by_key()) == sorted(names)
        assert clock.now == pytest.approx(100 * 0.05)
        # Of a job with a million of them no worker may count as stuck.
        assert longest <= 0.06


# Wake-ups.


def test_partitions_that_a_ticket_of_another_made_known_are_served_too(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline(), partitions=1) as job:
        job.send(numbered(KEYS, 3))
        worker = job.worker()
        job.assign("w0", is_told=False)

        # A ticket comes before the control message: the worker looks, and takes both partitions.
        worker.slice(0, 0)
        job.look()
        job.run_until_idle()

        assert worker.places == [(0, 0), (1, 0)]
        assert_sequence(job, KEYS, 3)
        job.assert_drained()


def test_a_partition_whose_slice_was_cut_off_is_served_at_the_next_look(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline(), partitions=1) as job:
        job.assign()
        job.send(numbered(KEYS, 3))
        job.scripts["w0"].break_call("after")
        job.run_until_idle()
        assert [end for _, _, end in job.ends][-1] is SliceEnd.STALE

        job.look()
        job.run_until_idle()

        assert_sequence(job, KEYS, 3)
        job.assert_drained()


def test_a_failure_that_cannot_be_told_to_redis_is_told_later(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline(), partitions=1) as job:
        job.assign()
        append(job, (0, 0), Watermark("x", 1))
        job.client.xadd(keys.inbox("j", 0, 0), {"h": b"bad"}, id="1-1")
        job.client.hset(keys.meta("j", 0, 0), "sub", 2)
        job.scripts["w0"].break_call("before", 2)  # the commit reads; then the transition

        job.run_until_idle()
        assert job.jobs.state("j") is JobState.RUNNING
        job.look()

        assert job.jobs.state("j") is JobState.FAILED


def test_a_ticket_for_a_partition_of_somebody_else_does_nothing(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline(), partitions=1) as job:
        job.assign("w0")
        stranger = job.worker("w1")
        job.send(numbered(KEYS, 1))

        assert stranger.slice(0, 0) is None

        job.run_to_the_end()
        assert_sequence(job, KEYS, 1)


def test_slices_end_when_their_time_is_over_and_the_ticket_goes_to_the_back(redis_url: str) -> None:
    limits = Limits(step_records=4)
    with LocalJob(redis_url, sequence_pipeline(), partitions=1, limits=limits, clock=SteppingClock(0.01)) as job:
        job.send(numbered(KEYS, 20), entry_records=3)
        job.assign()
        job.run_to_the_end()

        assert_sequence(job, KEYS, 20)
        assert [end for _, _, end in job.ends].count(SliceEnd.YIELDED) > 5


@pytest.mark.parametrize("to", [JobState.CANCELLED, JobState.FAILED])
def test_a_job_that_has_ended_is_let_go(redis_url: str, to: JobState) -> None:
    with LocalJob(redis_url, sequence_pipeline(), partitions=1) as job:
        job.assign()
        job.send(numbered(KEYS, 2))
        job.jobs.transition("j", to, "by the test")

        job.run_until_idle()

        assert [end for _, _, end in job.ends][-1] is SliceEnd.STOPPED
        assert (0, 0) not in job.worker().places


def test_a_key_of_another_program_fails_the_job_with_a_message(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline(), partitions=1) as job:
        job.client.set(keys.inbox("j", 1, 0), "not ours")
        job.assign("w0", [(0, 0)])
        job.send(numbered(KEYS, 2))
        job.run_until_idle()

        record = job.jobs.read("j")
        assert record.state is JobState.FAILED
        assert "a key of ours holds something else: celeriac:{j}:inbox:1." in record.reason


def deleted(job: LocalJob) -> None:
    job.client.delete(keys.inbox("j", 0, 0))


def trimmed(job: LocalJob) -> None:
    job.client.xtrim(keys.inbox("j", 0, 0), minid="3-0", approximate=False)


def with_a_hole(job: LocalJob) -> None:
    job.client.xdel(keys.inbox("j", 0, 0), "3-0")


@pytest.mark.parametrize("damage", [deleted, trimmed, with_a_hole])
def test_entries_that_another_program_has_deleted_fail_the_job_with_a_message(
    redis_url: str, damage: Callable[[LocalJob], None]
) -> None:
    with LocalJob(redis_url, sequence_pipeline(), partitions=1, clock=SteppingClock(0.0001)) as job:
        job.assign("w0")
        job.run_until_idle()
        job.send(numbered(["a"], 6), entry_records=1)
        job.is_tampered = True
        damage(job)
        commits = job.scripts["w0"].calls
        real = job.scripts["w0"].run

        def counted(name: str, keys_: Any, args: Any) -> list[Any]:
            assert len(commits) < 100, "the worker asks without end"
            return real(name, keys_, args)

        job.scripts["w0"].run = counted  # type: ignore[method-assign]
        job.run_until_idle()

        record = job.jobs.read("j")
        assert record.state is JobState.FAILED
        assert "entries are missing in an inbox" in record.reason
        assert "another program has deleted" in record.reason


# The end of input.


def last_pipeline(stages: int = 1) -> Pipeline:
    flow = Pipeline("last")
    stream: Any = flow.source(read.iterable([0]), name="in")
    for number in range(stages):
        stream = (
            stream.key_by(lambda pair: pair[0], name=f"by_{number}")
            .last(name=f"last_{number}")
            .map(lambda pair: [pair[0], pair[1] + 1000], name=f"plus_{number}")
        )
    stream.sink(write.stream("out"), name="out")
    return flow


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("timers", [1, 7, 2000])
def test_last_emits_each_key_once_when_the_input_has_ended(
    redis_url: str, stages: int, timers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "TIMERS_PER_STEP", timers)
    names = [f"k{i}" for i in range(60)]
    with LocalJob(redis_url, last_pipeline(stages)) as job:
        job.assign()
        job.send(numbered(names, 3), entry_records=25)
        job.run_until_idle()
        assert job.read() == []
        assert len(job.state(1)) == 60

        job.run_to_the_end()

        assert sorted(job.read()) == sorted((name, [name, 3 + 1000 * stages]) for name in names)
        assert job.state(1) == job.state(2) == {}
        assert not job.client.keys("*:timers:*")


def test_two_last_in_one_stage_end_upstream_first(redis_url: str) -> None:
    flow = Pipeline("twice")
    keyed = flow.source(read.iterable([0]), name="in").key_by(lambda pair: pair[0], name="k")
    first = keyed.last(name="z_first")
    first.map(lambda pair: ["first", pair[1]], name="m").sink(write.stream("out"), name="out")
    first.map(lambda pair: ["second", pair[1]], name="m2").last(name="a_second").sink(write.stream("out2"), name="out2")

    with LocalJob(redis_url, flow) as job:
        job.assign()
        job.send(numbered(KEYS, 3))
        job.run_to_the_end()

        assert job.newest("out") == {key: ["first", 3] for key in KEYS}
        assert sorted(job.read("out2")) == [(key, ["second", 3]) for key in KEYS]


def test_the_end_of_two_sources_is_needed_behind_their_union(redis_url: str) -> None:
    flow = Pipeline("two")
    left, right = (flow.source(read.iterable([0]), name=name) for name in ("left", "right"))
    (
        left.union(right, name="both")
        .key_by(lambda pair: pair[0], name="k")
        .last(name="last")
        .sink(write.stream("out"), name="out")
    )
    with LocalJob(redis_url, flow) as job:
        job.assign()
        job.send(numbered(["l"], 5), feeds="left")
        job.send(numbered(["r"], 5), feeds="right")
        job.leader.close_source("j", job.token, job.plan, "left")
        job.run_until_idle()
        assert job.read() == []

        job.run_to_the_end()

        assert sorted(job.read()) == [("l", ["l", 5]), ("r", ["r", 5])]


@pytest.mark.sampled
@pytest.mark.parametrize("moment", ["before", "after"])
def test_firing_is_exact_when_any_call_in_it_is_lost(
    redis_url: str, moment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "TIMERS_PER_STEP", 4)
    for at in calls():
        with LocalJob(redis_url, last_pipeline(), partitions=1, job=f"j{at}") as job:
            job.assign()
            job.send(numbered([f"k{i}" for i in range(60)], 2))
            job.run_until_idle()
            job.scripts["w0"].break_call(moment, at)
            begun = len(job.scripts["w0"].calls)
            job.end_input()
            job.run_and_sweep()

            assert sorted(job.newest()) == sorted(f"k{i}" for i in range(60))
            assert len(job.read()) == 60
            job.assert_done()
            total = len(job.scripts["w0"].calls) - begun
            job.client.flushdb()
        if at > total:
            break
    assert at > 6


# Control.


def test_the_watermark_of_a_stage_is_the_lowest_of_its_senders_and_is_passed_on(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline(stages=2), partitions=2) as job:
        job.assign()
        append(job, (1, 0), Watermark("0.0", 500))
        job.run_until_idle()
        assert "watermark" not in job.meta((1, 0))

        append(job, (1, 0), Watermark("0.1", 300))
        job.run_until_idle()

        assert job.meta((1, 0))["watermark"] == "300"
        for number in (0, 1):
            log = job.client.hgetall(keys.log("j", 2, number))
            assert log[b"w:1.0"] == b"300"
        append(job, (1, 0), Watermark("0.1", 200))  # a promise is never taken back
        append(job, (1, 0), EndOfInput("0.1"))
        job.run_until_idle()
        assert job.meta((1, 0))["watermark"] == "500"


def test_a_watermark_in_the_header_of_data_counts_behind_its_records(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline(), partitions=1, limits=Limits(step_records=2)) as job:
        job.assign("w0")
        pairs = numbered(["a"], 5)
        append(job, (1, 0), Data("0.0", 1, 5, 700, 1), Batch(pairs, ["a"] * 5))
        append(job, (1, 0), Data("0.0", 6, 1, None, 1), Batch([["a", 6]], ["a"]))
        job.run_until_idle()

        assert job.by_key() == {"a": [1, 2, 3, 4, 5, 6]}
        assert job.meta((1, 0))["watermark"] == "700"
        assert (job.facts((1, 0)).backlog, job.facts((1, 0)).backlog_bytes) == (0, 0)
        job.assert_drained()


def test_barriers_and_tables_are_noted_in_their_place_and_no_batch_spans_them(redis_url: str) -> None:
    sizes: list[int] = []

    def note(pair: list[Any]) -> list[Any]:
        sizes.append(pair[1])
        return pair

    flow = sequence_pipeline(between=lambda stream: stream.map(note, name="note"))
    with LocalJob(redis_url, flow, partitions=1) as job:
        job.send(numbered(["a"], 3))
        append(job, (0, 0), Barrier(4))
        job.send(numbered(["a"], 2, first=4))
        append(job, (0, 0), Table(9))
        append(job, (0, 0), Barrier(5))
        job.send(numbered(["a"], 1, first=6))
        seen: list[tuple[int, str, str]] = []
        job.worker()
        real = job.scripts["w0"].run

        def watch(name: str, keys_: Any, args: Any) -> list[Any]:
            answer = real(name, keys_, args)
            meta = job.meta((0, 0))
            if name == "commit":
                seen.append((int(meta.get("taken", 0)), meta.get("barrier", ""), meta.get("arrived", "")))
            return answer

        job.scripts["w0"].run = watch  # type: ignore[method-assign, assignment]
        job.assign("w0", [(0, 0)])
        job.run_until_idle()

        assert list(dict.fromkeys(seen)) == [
            (0, "", ""),
            (1, "", ""),
            (3, "", ""),
            (3, "4", ""),
            (5, "4", ""),
            (5, "4", "9"),
            (5, "5", "9"),
            (6, "5", "9"),
        ]
        job.assign("w1", [(1, 0)])
        job.run_to_the_end()
        assert_sequence(job, ["a"], 6)


def test_one_ticket_serves_all_partitions_of_a_worker_whose_tickets_wait(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline(stages=3), partitions=2, takes_tickets=True) as job:
        job.assign()
        job.run_until_idle()
        job.send(numbered(KEYS, 5))
        place = next(place for place in job.places if job.pop_ticket(place))

        job.slice("w0", place)

        job.drain_outputs()
        assert_sequence(job, KEYS, 5)
        assert not any(job.pop_ticket(each) for each in job.places)
        assert "take" in job.scripts["w0"].calls


def test_a_partition_whose_ticket_was_taken_is_not_rung_while_another_is_served(redis_url: str) -> None:
    reports: list[dict[str, Any]] = []

    def look(pair: list[Any]) -> list[Any]:
        reports.append(job.worker().hand.report(0.0))
        return pair

    flow = sequence_pipeline(between=lambda stream: stream.map(look, name="look"))
    with LocalJob(redis_url, flow, partitions=3, takes_tickets=True) as job:
        job.assign()
        job.run_until_idle()
        for split in ("a", "b", "c"):
            job.send([[split, 1]], split)
        assert job.pop_ticket((0, 0))

        job.slice("w0", (0, 0))

        # The first one is served alone, the two others come with one call.
        at_work = [{name for name in report["slices"] if name.startswith("0.")} for report in reports]
        assert at_work == [{"0.0"}, {"0.1", "0.2"}, {"0.2"}]
        assert job.worker().hand.report(0.0) == {"slices": [], "hand": {}}


def test_a_worker_whose_time_is_over_leaves_the_other_tickets_where_they_are(redis_url: str) -> None:
    clock = SteppingClock(1.0)
    with LocalJob(redis_url, sequence_pipeline(stages=2), partitions=1, clock=clock, takes_tickets=True) as job:
        job.assign()
        job.run_until_idle()
        job.send(numbered(KEYS, 5))
        assert job.pop_ticket((0, 0))

        job.slice("w0", (0, 0))

        assert job.pop_ticket((1, 0))
        assert "take" not in job.scripts["w0"].calls
