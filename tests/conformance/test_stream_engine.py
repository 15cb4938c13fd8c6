"""Every operator gives on the streaming engine what it gives on workers, also when partitions change hands half-way.

The tasks are those of Spark, run by hand: by chance on several processes, one attempt after the other.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cases import CASES, Case
from tests.conformance.engines import Results, keyed_streams, run_live
from tests.runtime.harness import LocalJob
from tests.spark.streamed import Streamed

pytestmark = pytest.mark.timeout(600)

RETRIED = {case.name for case in CASES if case.policy is not None and case.policy.attempts > 1}
"""Two attempts at a batch are two at a record there."""


def run_streamed(
    redis_url: str, case: Case, values: Sequence[Any], cut: int | None, folder: Path, chance: random.Random
) -> tuple[Results, frozenset[str]]:
    """On tasks alone; with a `cut` a worker has the partitions until so many records are in, and again at the end."""
    with (
        LocalJob(redis_url, case.pipeline(values), partitions=case.partitions, job="s") as job,
        Streamed(job, folder, desks=1 if case.name in RETRIED else 2, most_records=50) as spark,
    ):
        first = values if cut is None else values[:cut]
        if cut is not None:
            job.assign()
            job.send(first, entry_records=37)
            for _ in range(chance.randrange(4)):
                job.serve()
        spark.take()
        if cut is None:
            job.send(first, entry_records=37)
        else:
            job.send(values[cut:], entry_records=37)
            for _ in range(chance.randrange(1, 4)):
                spark.now += 3600.0
                spark.look()
                spark.run(spark.plan(), chance)
                for desk in spark.desks:
                    desk._worker._paused.clear()
            job.assign("w1", chance.sample(job.places, len(job.places) // 2))
        job.end_input()
        for _ in range(20):
            spark.run_until_idle(chance)
            job.run_through_pauses()
        job.assert_done()
        job.drain_outputs()
        found = Results(held=job.jobs.facts(job.job).held)
        for name, records in job.outputs.items():
            found.outputs[name] = list(records)
        for stage in job.plan.stages:
            found.state.update(job.state(stage.index) if stage.keyed else {})
        found.letters = [letter_facts(each) for each in job.letters()]
        return found, keyed_streams(job.plan)


def letter_facts(letter: Any) -> tuple[str, str, str, str]:
    batch = letter.record()
    return letter.operator, letter.kind, letter.error, repr((batch.keys, batch.values))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tasks_of_the_streaming_engine_give_what_workers_give(case: Case, redis_url: str, tmp_path: Path) -> None:
    values, chance = case.drawn(41), random.Random(f"stream {case.name}")
    live = run_live(redis_url, case.pipeline(values), values, case.partitions)

    streamed, keyed = run_streamed(redis_url, case, values, None, tmp_path, chance)

    assert streamed.comparable(keyed) == live.comparable(keyed)
    assert streamed.outputs


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_workers_then_spark_and_then_both_give_what_workers_give(case: Case, redis_url: str, tmp_path: Path) -> None:
    values, chance = case.drawn(42), random.Random(f"hands {case.name}")
    live = run_live(redis_url, case.pipeline(values), values, case.partitions)
    cut = chance.randrange(1, len(values))

    streamed, keyed = run_streamed(redis_url, case, values, cut, tmp_path, chance)

    assert streamed.comparable(keyed) == live.comparable(keyed)
