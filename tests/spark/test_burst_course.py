"""The course of a burst, as its command follows it: to its end, interrupted, given up. Without a JVM, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.cli.burstcourse import MOST_DEATHS, START_SECONDS, Course
from pipeline.cli.exits import JobFailed
from pipeline.cli.interrupts import Interrupts
from pipeline.errors import OperationLost
from pipeline.lifecycle import JobState
from pipeline.operations import Claim, Phase
from pipeline.positions import Position
from pipeline.store import keys
from pipeline.store.claims import ClaimStore
from tests.runtime.harness import LocalJob, assert_sequence
from tests.spark.streamed import Streamed
from tests.spark.test_burst_tasks import HOP, KEYS, NODE, burst, fill, job, lead, spark_owns

__all__ = ["job"]


@dataclass
class Member:
    """In the place of the node's process: its exit code, and its log."""

    log: Path
    code: int | None = None

    def exit_code(self) -> int | None:
        return self.code


@dataclass
class Followed:
    """A course and what happens at each of its looks."""

    course: Course
    job: LocalJob
    member: Member
    claim: Claim
    said: list[str]
    now: float = 0.0
    steps: int = 0
    at: dict[int, Callable[[], object]] = field(default_factory=dict)
    """Look -> what happens there besides."""


def followed(job: LocalJob, spark: Streamed, folder: Path, work: Callable[[], object]) -> Followed:
    claim, _ = burst(job, spark, HOP)
    operation = job.jobs.facts("j").operation
    assert operation is not None
    cuts = {name: Position.parse(text) for name, text in operation.about.cuts.items()}
    starts = {part.name: part.position for part in job.jobs.facts("j").partitions if part.name in cuts}
    said: list[str] = []
    member = Member(folder / "member.log")
    claims = ClaimStore(job._scripts)
    course = Course(
        job.jobs,
        claims,
        claim,
        NODE,
        starts,
        cuts,
        member,
        Interrupts(),
        said.append,  # type: ignore[arg-type]
    )
    found = Followed(course, job, member, claim, said)

    def sleep(seconds: float) -> None:
        found.steps += 1
        found.now += seconds
        assert found.steps < 500, said
        found.at.get(found.steps, lambda: None)()
        work()

    course.clock, course.sleep = lambda: found.now, sleep
    return found


def test_it_ends_when_all_is_at_its_cut_and_back_and_says_what_spark_has_done(job: LocalJob, tmp_path: Path) -> None:
    fill(job)
    with Streamed(job, tmp_path, most_records=40) as spark:

        def work() -> None:
            """What it is given is looked at before it is worked on."""
            had = spark_owns(job)
            lead(job, spark)
            if had:
                spark.run(spark.plan())

        one = followed(job, spark, tmp_path, work)
        first, head, *rows = one.course.run()

        assert (one.course.outcome, one.course.phase) == ("done", Phase.RETURNING)
        assert spark_owns(job) == []
        assert first.startswith("360 records in ")
        assert "; 360 of them on Spark, in " in first
        assert head.split()[:2] == ["partition", "on"]
        assert [(row.split()[0], row.split()[1], row.split()[-1]) for row in rows] == [
            ("1.0", "200", "0"),
            ("1.1", "160", "0"),
        ]
        assert all(row.split()[3] == row.split()[4] for row in rows)
        operation = job.jobs.facts("j").operation
        assert operation is not None
        assert (operation.done, operation.total) == (360, 360)
        job.end_input()
        job.run_until_idle()
        assert_sequence(job, KEYS, 40)


def test_what_workers_have_done_before_spark_came_is_not_counted_as_its_work(job: LocalJob, tmp_path: Path) -> None:
    fill(job)
    with Streamed(job, tmp_path) as spark:
        one = followed(job, spark, tmp_path, job.run_until_idle)
        first, *_ = one.course.run()

        assert first.startswith("360 records in ")
        assert "Spark" not in first


def test_an_interrupt_gives_back_what_is_not_done(job: LocalJob, tmp_path: Path) -> None:
    fill(job)
    with Streamed(job, tmp_path, most_records=11) as spark:

        def work() -> None:
            lead(job, spark)
            if spark_owns(job):
                spark.run(spark.plan())

        one = followed(job, spark, tmp_path, work)
        one.at[4] = lambda: setattr(one.course.interrupts, "count", 1)
        first, _, *rows = one.course.run()

        assert one.course.is_interrupted
        assert spark_owns(job) == []
        # Workers go on with them at once: that is not Spark's.
        assert [0 < int(row.split()[1]) < 100 for row in rows] == [True, True], rows
        assert first.startswith("360 records in ")
        assert any("go back to workers where they are" in line for line in one.said)


def test_a_second_interrupt_does_not_wait(job: LocalJob, tmp_path: Path) -> None:
    fill(job)
    with Streamed(job, tmp_path, most_records=11) as spark:
        one = followed(job, spark, tmp_path, lambda: None)
        lead(job, spark)
        one.at[2] = lambda: setattr(one.course.interrupts, "count", 2)
        one.course.run()

        assert one.course.is_interrupted
        assert spark_owns(job) == HOP
        assert one.said[-1] == "2 partitions not taken back yet: they go to the next worker"


@pytest.mark.parametrize("how", ["ended", "refused", "silent"])
def test_a_spark_that_does_not_come_is_given_up_with_its_words(job: LocalJob, tmp_path: Path, how: str) -> None:
    fill(job)
    with Streamed(job, tmp_path) as spark:
        one = followed(job, spark, tmp_path, lambda: None)
        job.client.hdel(keys.workers("j"), "i:spark", "a:spark", "r:spark")  # it was never heard of
        one.member.log.write_text("INFO x\nerror: no Java\nhint: y\n" if how == "refused" else "INFO x\n")
        if how == "ended":
            one.member.code = 3
        if how == "silent":
            one.at[2] = lambda: setattr(one, "now", one.now + START_SECONDS)

        with pytest.raises(JobFailed) as caught:
            one.course.run()

        expected = {
            "ended": "its node has ended with code 3; it said: INFO x",
            "refused": "Spark does not start; it said: no Java",
        }
        assert expected.get(how, "Spark does not start; it said: INFO x") in str(caught.value)


def test_a_spark_that_dies_again_and_again_is_given_up(job: LocalJob, tmp_path: Path) -> None:
    fill(job)
    with Streamed(job, tmp_path) as spark:
        one = followed(job, spark, tmp_path, lambda: None)
        for number in range(MOST_DEATHS + 1):
            one.at[2 + number] = lambda n=number: job.client.hset(keys.workers("j"), "i:spark", f"{2 + n}-a")  # type: ignore[misc]

        with pytest.raises(JobFailed, match=f"Spark has died {MOST_DEATHS} times"):
            one.course.run()


def test_a_job_that_stops_working_ends_it(job: LocalJob, tmp_path: Path) -> None:
    fill(job)
    with Streamed(job, tmp_path) as spark:
        one = followed(job, spark, tmp_path, lambda: None)
        one.at[2] = lambda: job.jobs.transition("j", JobState.CANCELLED, "by the test")

        with pytest.raises(JobFailed, match="the job is cancelled"):
            one.course.run()

        assert one.course.outcome == "given up: the job is cancelled"


def test_one_that_was_taken_for_gone_does_not_go_on(job: LocalJob, tmp_path: Path) -> None:
    fill(job)
    with Streamed(job, tmp_path) as spark:
        one = followed(job, spark, tmp_path, lambda: None)
        one.at[3] = lambda: ClaimStore(job._scripts).end(one.claim, "given up")

        with pytest.raises(OperationLost):
            one.course.run()
