"""Bursts without a JVM: partitions are worked off up to their cuts, from their state, and go on elsewhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from leader.duties.placement import Placement
from pipeline import tickets
from pipeline.bursts import burst_pool
from pipeline.operations import About, Claim, Phase
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.backlogs import read_backlogs
from pipeline.store.claims import ClaimStore
from tests.runtime.harness import LocalJob, Place, assert_sequence, numbered, sequence_pipeline
from tests.spark.streamed import NAME, Streamed

KEYS: Final = [f"k{number}" for number in range(9)]
NODE: Final = "here.burst-1"
HOP: Final = [(1, 0), (1, 1)]


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    limits = Limits(lease_seconds=600.0, collect_seconds=600.0)
    with LocalJob(redis_url, sequence_pipeline(2), limits=limits) as made:
        made.assign()
        yield made


def burst(job: LocalJob, spark: Streamed, places: list[Place]) -> tuple[Claim, dict[Place, int]]:
    """It is undertaken, and its worker is there. Also how many records are in front of each cut."""
    _, found = read_backlogs(job._scripts, "j", places)
    cuts = {f"{s}.{p}": str(each.end) for (s, p), each in found.items()}
    about = About("burst", by="me", node=NODE, cuts=cuts)
    claim = ClaimStore(job._scripts).undertake("j", about, Phase.BURSTING)
    spark.member._told.update(node=NODE, pool=burst_pool(NODE))
    spark.cut(cuts)
    spark.beat()
    return claim, {place: each.end.order[0] - 1 for place, each in found.items()}


def lead(job: LocalJob, spark: Streamed) -> None:
    """Rounds of new leaders, and whoever is asked gives away, until nothing moves."""
    for seed in range(6):
        job.worker().ownership.heartbeat('{"slices": []}')
        placement = Placement(job._scripts, job.leader, lambda: job.leader.server, random.Random(seed))
        placement.run_once(job.jobs.facts("j"), job.token)
        job.look()
        spark.look()


def spark_owns(job: LocalJob) -> list[Place]:
    return [(part.stage, part.partition) for part in job.jobs.facts("j").partitions if part.owner == NAME]


def stands(job: LocalJob, place: Place) -> int:
    """Records that are behind it."""
    first, _, record = job.facts(place).position.order
    return first - 1 + record


def fill(job: LocalJob, count: int = 40) -> None:
    """The first stage is through, the second has all before it."""
    job.send(numbered(KEYS, count), entry_records=7)
    for _ in range(200):
        if not any(job.facts((0, number)).backlog for number in (0, 1)):
            return
        for number in (0, 1):
            job.slice("w0", (0, number))
    raise AssertionError("the first stage is not through")


def test_a_partition_is_worked_off_to_its_cut_and_goes_on_at_the_next_record(job: LocalJob, tmp_path: Path) -> None:
    fill(job)
    with Streamed(job, tmp_path) as spark:
        _, cuts = burst(job, spark, [(1, 0)])
        job.send(numbered(KEYS, 10, 41), entry_records=7)  # what comes now is behind the cut

        lead(job, spark)
        assert spark_owns(job) == [(1, 0)]
        job.run_until_idle()
        others = job.facts((1, 1))
        assert (others.backlog, others.taken > 0) == (0, True)
        assert job.facts((1, 0)).taken == 0
        for _ in range(50):
            slices = spark.plan()
            if not slices:
                break
            spark.run(slices, random.Random(1))

        assert stands(job, (1, 0)) == cuts[1, 0]
        assert job.facts((1, 0)).backlog > 0
        lead(job, spark)
        assert spark_owns(job) == []
        job.end_input()
        job.run_until_idle()
        job.assert_done()
        assert_sequence(job, KEYS, 50)


def test_its_partition_goes_on_elsewhere_while_another_one_is_still_at_work(job: LocalJob, tmp_path: Path) -> None:
    fill(job)
    with Streamed(job, tmp_path) as spark:
        _, cuts = burst(job, spark, HOP)
        lead(job, spark)
        assert spark_owns(job) == HOP
        while stands(job, (1, 1)) < cuts[1, 1]:
            spark.run([part for part in spark.plan() if part.place == (1, 1)])

        lead(job, spark)

        assert spark_owns(job) == [(1, 0)]
        assert stands(job, (1, 0)) == 0
        spark.run_until_idle()
        lead(job, spark)
        assert spark_owns(job) == []
        job.end_input()
        job.run_until_idle()
        assert_sequence(job, KEYS, 40)


@pytest.mark.parametrize("end", ["returning", "ended", "given up"])
def test_all_goes_back_from_the_middle_of_a_backlog(job: LocalJob, tmp_path: Path, end: str) -> None:
    fill(job)
    with Streamed(job, tmp_path, most_records=11) as spark:
        claim, _ = burst(job, spark, HOP)
        lead(job, spark)
        spark.run(spark.plan())
        assert [stands(job, place) for place in HOP] == [11, 11]

        match end:
            case "returning":
                ClaimStore(job._scripts).renew(claim, Phase.RETURNING, 1, 2)
            case "ended":
                ClaimStore(job._scripts).end(claim, "interrupted")
            case _:
                job.client.hset(keys.operation("j"), "until", 1)  # as when its command was not heard of for long
        lead(job, spark)

        assert spark_owns(job) == []
        job.end_input()
        job.run_until_idle()
        job.assert_done()
        assert_sequence(job, KEYS, 40)


@pytest.mark.parametrize("seed", range(4))
def test_owners_that_change_at_any_step_with_attempts_at_once_lose_and_double_nothing(
    redis_url: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    limits = Limits(lease_seconds=600.0, collect_seconds=600.0, step_records=8)
    with (
        LocalJob(redis_url, sequence_pipeline(2), partitions=3, limits=limits) as job,
        Streamed(job, tmp_path, desks=3, most_records=13) as spark,
    ):
        job.assign()
        fill(job, 20)
        count, claim = 20, None
        for _ in range(12):
            if claim is None:
                claim, _ = burst(job, spark, chance.sample(job.places, 3))
            lead(job, spark)
            slices = spark.plan()
            if slices and chance.random() < 0.3:  # it dies in its batch, and what it had goes elsewhere
                for part in slices:
                    spark.desks[0].serve(part, 60.0)
                for place in spark_owns(job):
                    take_away(job, place)
                for part in slices:
                    spark.desks[1].serve(part, 60.0)
            elif slices:
                spark.run(slices, chance)
            job.look()
            job.serve()
            job.drain_outputs()
            if chance.random() < 0.4:
                ClaimStore(job._scripts).end(claim, "done")
                claim = None
            if chance.random() < 0.3:
                job.send(numbered(KEYS, 3, count + 1), entry_records=5)
                count += 3
        if claim is not None:
            ClaimStore(job._scripts).end(claim, "done")
        lead(job, spark)
        job.end_input()
        job.run_until_idle()

        job.assert_done()
        assert_sequence(job, KEYS, count)


def take_away(job: LocalJob, place: Place) -> None:
    """As from a worker that died."""
    term = int(job.client.hget(keys.meta("j", *place), "term")) + 1
    ticket = tickets.ticket("j", *place, term)
    worker = job.worker().ownership
    assert job.leader.assign(
        "j", job.token, place, (worker.worker, worker.incarnation), term, f"n{term}", ticket, False
    )
