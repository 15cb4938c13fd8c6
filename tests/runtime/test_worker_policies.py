"""What on_error does: tries again later, gives up, drops, or fails the job; and what goes on meanwhile."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from pipeline import ErrorPolicy, Pipeline, Stream, dead_letter, fail, read, retry, skip, write
from pipeline.errors import StoreUnavailable
from pipeline.lifecycle import JobState
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store import keys
from stages.partition import SliceEnd
from tests.runtime.harness import LocalJob, Moment
from tests.sampling import calls, some


class Flaky:
    """Fails for a value so many times, then gives it back. `calls` counts per value."""

    def __init__(self, **failures: int) -> None:
        self.left = dict(failures)
        self.calls: Counter[str] = Counter()

    def __call__(self, value: str) -> str:
        self.calls[value] += 1
        if self.left.get(value, 0) > 0:
            self.left[value] -= 1
            raise ConnectionError(f"no answer for {value}")
        return value


def flow(fn: Any, policy: ErrorPolicy | None = None) -> Pipeline:
    """Source `in` -> fn -> stream `out`, all of it one stage."""
    made = Pipeline("policies")
    made.source(read.iterable([0]), name="in", on_error=policy).map(fn, name="work").sink(
        write.stream("out"), name="out"
    )
    return made


def finished(job: LocalJob, values: list[Any]) -> LocalJob:
    job.assign()
    job.send(values)
    job.end_input()
    job.run_through_pauses()
    return job


def skipped(job: LocalJob) -> int:
    return sum(part.skipped for part in job.jobs.facts("j").partitions)


def test_a_record_is_tried_again_until_it_goes_through_and_order_holds(redis_url: str) -> None:
    needed = {"c": 3, "e": 4}

    def work(value: str) -> str:
        if pauses() < needed.get(value, 0):
            raise ConnectionError("no answer yet")
        return value

    def pauses() -> int:
        return [end for _, _, end in job.ends].count(SliceEnd.BACKOFF)

    with LocalJob(redis_url, flow(work, retry(4)), partitions=1) as job:
        finished(job, list("abcdef"))

        assert job.values() == list("abcdef")
        assert job.letters() == []
        assert pauses() == 4
        job.assert_done()


def test_a_record_alone_is_run_once_for_each_attempt(redis_url: str) -> None:
    flaky = Flaky(a=99)
    with LocalJob(redis_url, flow(flaky, retry(4)), partitions=1) as job:
        finished(job, ["a"])

        assert flaky.calls["a"] == 4


def test_the_last_failed_attempt_gives_the_record_up_with_its_history(redis_url: str) -> None:
    with LocalJob(redis_url, flow(Flaky(c=99), retry(3)), partitions=1) as job:
        finished(job, list("abcd"))

        assert job.values() == ["a", "b", "d"]
        [letter] = job.letters()
        assert (letter.operator, letter.error) == ("work", "ConnectionError: no answer for c")
        assert [line.split(" ", 1)[1] for line in letter.tried] == [
            f"{number} work: ConnectionError: no answer for c" for number in (1, 2)
        ]
        assert all(int(line.split(" ")[0]) > 1_600_000_000_000 for line in letter.tried)


def test_only_the_last_attempts_are_kept(redis_url: str) -> None:
    with LocalJob(redis_url, flow(Flaky(a=99), retry(30)), partitions=1) as job:
        finished(job, ["a"])

        assert [int(line.split(" ")[1]) for line in job.letters()[0].tried] == list(range(20, 30))


def test_skip_drops_and_counts(redis_url: str) -> None:
    with LocalJob(redis_url, flow(Flaky(b=99, d=99), skip()), partitions=1) as job:
        finished(job, list("abcd"))

        assert job.values() == ["a", "c"]
        assert job.letters() == []
        assert skipped(job) == 2


def test_retry_then_skip(redis_url: str) -> None:
    flaky = Flaky(b=99)
    with LocalJob(redis_url, flow(flaky, retry(3, then=skip())), partitions=1) as job:
        finished(job, list("abc"))

        assert job.values() == ["a", "c"]
        assert skipped(job) == 1


def test_fail_ends_the_job_behind_the_last_good_record_and_it_goes_on_there(redis_url: str) -> None:
    flaky = Flaky(c=99)
    with LocalJob(redis_url, flow(flaky, fail()), partitions=1) as job:
        finished(job, list("abcd"))

        assert job.jobs.state("j") is JobState.FAILED
        assert "the operator 'work' failed: ConnectionError: no answer for c" in job.jobs.read("j").reason
        assert job.values() == ["a", "b"]

        flaky.left.clear()
        job.jobs.transition("j", JobState.RUNNING)
        job.assign()
        job.run_and_sweep()
        assert job.values() == list("abcd")


def test_a_failure_of_a_keyed_stage_names_the_key(redis_url: str) -> None:
    made = Pipeline("keyed")
    stream = made.source(read.iterable([0]), name="in").key_by(lambda v: v, name="by", on_error=fail())
    stream.map(Flaky(b=99), name="work").sink(write.stream("out"), name="out")

    with LocalJob(redis_url, made, partitions=1) as job:
        finished(job, list("abc"))

        assert "(key b)" in job.jobs.read("j").reason.replace("'", "").replace('"', "")


def test_the_policy_belongs_to_a_stage_and_the_pipelines_is_for_the_others(redis_url: str) -> None:
    made = Pipeline("both", on_error=skip())
    entry = made.source(read.iterable([0]), name="in").map(Flaky(a=99), name="first")
    keyed = entry.key_by(lambda v: v, name="by", on_error=dead_letter()).map(Flaky(b=99), name="second")
    keyed.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, made, partitions=1) as job:
        finished(job, list("abc"))

        assert job.values() == ["c"]
        assert skipped(job) == 1
        assert [letter.operator for letter in job.letters()] == ["second"]


def test_what_a_source_could_not_read_follows_the_policy_too(redis_url: str) -> None:
    with LocalJob(redis_url, flow(Flaky(), retry(5, then=skip())), partitions=1) as job:
        job.assign()
        job.lane().append(1, Batch(["a", "raw", "c"], faults={1: "line 2 is no number"}))
        job.end_input()
        job.run_until_idle()

        assert job.values() == ["a", "c"]
        assert skipped(job) == 1


def test_a_value_that_cannot_be_encoded_follows_the_policy(redis_url: str) -> None:
    with LocalJob(redis_url, flow(lambda v: object() if v == "b" else v, skip()), partitions=1) as job:
        finished(job, list("abc"))

        assert job.values() == ["a", "c"]
        assert skipped(job) == 1


# What goes on meanwhile.


def test_other_partitions_of_the_worker_go_on_while_one_backs_off(redis_url: str) -> None:
    with LocalJob(redis_url, flow(Flaky(bad=99), retry(5)), partitions=2) as job:
        job.assign()
        job.run_until_idle()
        job.send(["bad", "behind it"], split="a")
        job.send(["good"], split="b")

        while job.serve():
            pass

        assert job.values() == ["good"]
        assert len(job.worker().pauses()) == 1
        report = job.worker().hand.report(0.0)
        assert [hand["why"] for hand in report["hand"].values()] == ["backoff"]
        assert report["slices"] == []


def test_a_ticket_that_comes_meanwhile_does_not_run_it_early(redis_url: str) -> None:
    flaky = Flaky(bad=1)
    with LocalJob(redis_url, flow(flaky, retry(5)), partitions=1) as job:
        job.assign()
        job.send(["bad"])
        while job.serve():
            pass
        calls = flaky.calls["bad"]

        assert job.slice("w0", (0, 0)) is SliceEnd.BACKOFF
        assert flaky.calls["bad"] == calls
        assert job.worker().look() == []

        job.serve_waiting()
        assert job.values() == ["bad"]
        assert job.worker().pauses() == []


def test_a_new_owner_knows_the_attempts_before(redis_url: str) -> None:
    flaky = Flaky(bad=99)
    with LocalJob(redis_url, flow(flaky, retry(4)), partitions=1) as job:
        job.assign()
        job.send(["bad", "good"])
        while job.serve():
            pass
        for number in range(2):
            job.assign(f"w{number + 1}")
            job.look()

        assert job.letters() == []
        job.assign("w9")
        job.run_through_pauses()
        assert job.values() == ["good"]
        assert len(job.letters()[0].tried) == 3


@pytest.mark.sampled
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_request_or_reply_lost_at_any_call_loses_no_record_and_ends_the_attempts(
    redis_url: str, moment: Moment
) -> None:
    for at in calls():
        flaky = Flaky(c=2, d=99)
        with LocalJob(redis_url, flow(flaky, retry(3)), partitions=1, job=f"j{at}") as job:
            job.worker()
            job.scripts["w0"].break_call(moment, at)
            job.assign(is_told=False)
            job.send(list("abcdef"))
            for _ in range(3):
                try:
                    job.run_through_pauses()
                    break
                except StoreUnavailable:
                    continue
            total = len(job.scripts["w0"].calls)

            assert job.values() == ["a", "b", "c", "e", "f"]
            assert job.dead_values() == ["d"]
            job.client.flushdb()
        if at > total:
            break
    assert at > 8


@pytest.mark.sampled
@pytest.mark.parametrize("seed", some(range(6)))
def test_whatever_fails_and_whoever_takes_over_each_key_keeps_its_order(redis_url: str, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    left = {number: rng.choice([0, 0, 0, 1, 2, 9]) for number in range(60)}

    def work(pair: list[Any]) -> list[Any]:
        if left[pair[1]] > 0:
            left[pair[1]] -= 1
            raise ConnectionError("no answer")
        return pair

    made = Pipeline("random")
    keyed = made.source(read.iterable([0]), name="in").key_by(lambda pair: pair[0], name="by", on_error=retry(4))
    keyed.map(work, name="work").sink(write.stream("out"), name="out")
    limits = Limits(step_records=rng.choice([3, 8000]))
    with LocalJob(redis_url, made, partitions=2, limits=limits) as job:
        job.assign()
        for number in range(60):
            job.send([[rng.choice("abc"), number]])
            if rng.random() < 0.3:
                job.serve()
            if rng.random() < 0.2:
                job.serve_waiting()
            if rng.random() < 0.1:
                job.assign(rng.choice(["w0", "w1"]), [rng.choice(job.places)])
        job.end_input()
        job.run_through_pauses()

        order: dict[str, list[int]] = defaultdict(list)
        for key, number in job.values():
            order[key].append(number)
        assert all(numbers == sorted(numbers) for numbers in order.values())
        assert sorted([n for ns in order.values() for n in ns] + [n for _, n in job.dead_values()]) == list(range(60))


def test_attempts_are_forgotten_with_the_record(redis_url: str) -> None:
    with LocalJob(redis_url, flow(Flaky(a=2, b=2), retry(3)), partitions=1) as job:
        finished(job, list("ab"))

        assert job.values() == ["a", "b"]


def source_of(policy: Any) -> Stream:
    return Pipeline("refused").source(read.iterable([0]), name="in", on_error=policy)


def test_the_key_of_the_attempts_stays_one(redis_url: str) -> None:
    """Nothing grows: the lines stand in the partition's meta."""
    with LocalJob(redis_url, flow(Flaky(a=99), retry(5)), partitions=1) as job:
        finished(job, ["a"])

        assert len(job.client.hget(keys.meta("j", 0, 0), "tried")) < 10 * 400
