"""The watch behind the Pipelines page, on a real job: what it answers, how often it asks, what it remembers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline import Pipeline, read, write
from pipeline.flower.watch import FRESH_SECONDS, KEPT_ANSWERS, KEPT_JOBS, Answer, Watch
from pipeline.plan import PROTOCOL
from pipeline.store.connection import connect
from pipeline.store.jobs import JobStore
from pipeline.store.scripts import Scripts
from tests.runtime.harness import LocalJob, SteppingClock


class CountedStore(JobStore):
    """A real store that counts how often facts and dead letters were read."""

    facts_read = 0
    letters_read = 0

    def facts(self, job: str) -> Any:
        self.facts_read += 1
        return super().facts(job)

    def dead_letters(self, job: str, count: int = 100) -> Any:
        self.letters_read += 1
        return super().dead_letters(job, count)


def a_flow() -> Pipeline:
    flow = Pipeline("flow")
    numbers = flow.source(read.iterable([0]), name="numbers").map(lambda n: 10 // n, name="divide")
    numbers.key_by(lambda n: n % 3, name="by_rest").sink(write.stream("out"), name="out")
    return flow


def a_store(url: str) -> CountedStore:
    return CountedStore(Scripts(connect(url)))


def decoded(answer: Answer) -> Any:
    return json.loads(answer.body)


def test_a_job_at_work_shows_its_stages_partitions_and_dead_letters(redis_url: str) -> None:
    with LocalJob(redis_url, a_flow()) as job:
        job.assign()
        job.send([1, 2, 0, 5])
        job.run_until_idle()

        answer = Watch(a_store(redis_url)).job("j")

    shown = decoded(answer)
    assert (answer.status, shown["state"], shown["pipeline"]) == (200, "running", "flow")
    assert [(stage["name"], stage["taken"], stage["emitted"]) for stage in shown["stages"]] == [
        ("numbers", 4, 3),
        ("by_rest", 3, 3),
    ]
    assert {part["owner"] for part in shown["partitions"]} == {"w0"}
    assert all(part["token"].startswith("1:") for part in shown["partitions"])
    assert [(letter["operator"], "ZeroDivisionError" in letter["error"]) for letter in shown["letters"]] == [
        ("divide", True)
    ]


def test_backlog_rates_and_lag_follow_the_job(redis_url: str) -> None:
    with LocalJob(redis_url, a_flow()) as job:
        job.assign()
        watch = Watch(a_store(redis_url), SteppingClock(1.0))
        job.send([1] * 30)
        before = decoded(watch.job("j"))["stages"][0]
        job.run_until_idle()
        after = decoded(watch.job("j"))["stages"][0]

    assert (before["backlog"], before["is_lag_least"], before["taken_rate"]) == (30, True, 0)
    assert (after["backlog"], after["lag_ms"], after["is_lag_least"]) == (0, 0, False)
    assert after["taken_rate"] > 0


def test_many_viewers_cost_as_much_as_one(redis_url: str) -> None:
    with LocalJob(redis_url, a_flow()):
        store, now = a_store(redis_url), [0.0]
        watch = Watch(store, lambda: now[0])

        answers = {watch.job("j") for _ in range(20)}
        now[0] += FRESH_SECONDS
        watch.job("j")

    assert len(answers) == 1
    assert store.facts_read == 2


def test_dead_letters_are_read_again_only_when_there_are_others_to_show(redis_url: str) -> None:
    with LocalJob(redis_url, a_flow()) as job:
        job.assign()
        store = a_store(redis_url)
        watch = Watch(store, SteppingClock(1.0))
        job.send([0, 0])
        job.run_until_idle()
        first = decoded(watch.job("j"))
        watch.job("j")
        job.send([0] * 40)
        job.run_until_idle()
        second = decoded(watch.job("j"))
        job.send([0])
        job.run_until_idle()
        third = decoded(watch.job("j"))

    shown = [(each["dead_letters"], len(each["letters"])) for each in (first, second, third)]
    assert shown == [(2, 2), (42, 20), (43, 20)]
    assert store.letters_read == 2


def test_jobs_are_listed_and_one_of_another_version_is_named(redis_url: str) -> None:
    with LocalJob(redis_url, a_flow()) as job:
        job.jobs.create("k", job.plan)
        plan = job.plan.encode().replace(b'"protocol":%d' % PROTOCOL, b'"protocol":99')
        job.client.hset("celeriac:{k}:job", "plan", plan)

        shown = decoded(Watch(a_store(redis_url)).jobs())

    assert [each["job"] for each in shown["jobs"]] == ["j"]
    assert (shown["total"], shown["unreadable"]) == (2, ["k"])


def test_a_job_that_is_not_there_is_an_answer_of_its_own(redis_url: str) -> None:
    answer = Watch(a_store(redis_url)).job("nobody")

    assert (answer.status, decoded(answer)["error"]) == (404, "there is no job 'nobody'")


def test_a_redis_that_is_away_is_an_answer_too_and_names_no_password() -> None:
    watch = Watch(a_store("redis://:secret@127.0.0.1:1/0"))

    for answer in (watch.jobs(), watch.job("j")):
        assert (answer.status, b"secret" in answer.body) == (503, False)
        assert "cannot be reached" in decoded(answer)["error"]


@pytest.mark.parametrize("count", [KEPT_ANSWERS * 2])
def test_what_is_remembered_is_bounded_whatever_is_asked_for(redis_url: str, count: int) -> None:
    with LocalJob(redis_url, a_flow()) as job:
        for number in range(count):
            job.jobs.create(f"job{number}", job.plan)
        watch = Watch(a_store(redis_url))
        for number in range(count):
            watch.job(f"job{number}")

    assert len(watch._answers) == KEPT_ANSWERS
    assert len(watch._seen) == KEPT_JOBS
