"""Results are those of plain Python, however the stream is cut, whatever the limits, through faults and takeovers."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import Pipeline, count, read, write
from pipeline.errors import StoreUnavailable
from pipeline.settings import Limits
from pipeline.sinks.publisher import publish
from pipeline.sinks.staging import StagedFacts
from stages.partition import SliceEnd
from stages.worker import Worker
from tests.runtime.harness import (
    LocalJob,
    Moment,
    SteppingClock,
    assert_sequence,
    numbered,
    sequence_pipeline,
)
from tests.sampling import calls, some

KEYS = ["a", "b", "c", "d", "e"]
_job_ids = map("job-{}".format, itertools.count(1))


def wordcount() -> Pipeline:
    flow = Pipeline("wordcount")
    (
        flow.source(read.iterable([""]), name="lines")
        .flat_map(str.split, name="words")
        .key_by(str.lower, name="by_word")
        .aggregate(count(), name="n")
        .sink(write.stream("out"), name="out")
    )
    return flow


limits = st.builds(
    Limits,
    step_records=st.sampled_from([1, 2, 7, 8000]),
    step_bytes=st.sampled_from([1, 100, 4 << 20]),
    step_outputs=st.sampled_from([1, 10, 50_000]),
    entry_bytes=st.sampled_from([1, 40, 1 << 20]),
    inbox_records=st.sampled_from([8, 20, 50_000]),
    cache_bytes=st.sampled_from([0, 2000, 256 << 20]),
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    limits=limits,
    partitions=st.sampled_from([1, 2, 3]),
    batches=st.lists(
        st.lists(st.lists(st.sampled_from(["x", "Y", "y", "zz"]), max_size=4).map(" ".join), max_size=8), max_size=6
    ),
    seconds=st.sampled_from([0.0, 0.006]),
)
def test_the_word_count_is_that_of_a_counter_however_it_is_cut(
    redis_url: str, limits: Limits, partitions: int, batches: list[list[str]], seconds: float
) -> None:
    expected = Counter(word.lower() for lines in batches for line in lines for word in line.split())
    job_id = next(_job_ids)

    with LocalJob(
        redis_url, wordcount(), partitions=partitions, limits=limits, job=job_id, clock=SteppingClock(seconds)
    ) as job:
        job.assign()
        for number, lines in enumerate(batches):
            for line in lines:
                job.send([line], split=f"s{number % 3}")
                job.run_until_idle() if limits.inbox_records < 50_000 else None
            job.serve()
        job.run_to_the_end()

        assert job.newest() == expected
        assert job.by_key() == {word: list(range(1, number + 1)) for word, number in expected.items()}
        assert job.letters() == []
        job.client.flushdb()


@pytest.mark.parametrize("step_records", [1, 3, 8000])
def test_an_entry_is_worked_off_in_parts(redis_url: str, step_records: int) -> None:
    with LocalJob(redis_url, sequence_pipeline(), limits=Limits(step_records=step_records)) as job:
        job.send(numbered(KEYS, 40))
        job.assign()
        job.run_to_the_end()

        assert_sequence(job, KEYS, 40)


# A zombie.


def take_over_before_commit(job: LocalJob, worker: Worker, to: str, at_call: int) -> None:
    """Gives the partition of the worker's `at_call`-th commit to another worker, just before that commit is sent."""
    scripts = job.scripts[worker.ownership.worker]
    real, seen = scripts.run, itertools.count(1)

    def run(name: str, keys: Any, args: Any) -> list[Any]:
        if name == "commit" and next(seen) == at_call:
            place = tuple(map(int, args[6].split(".")))
            job.assign(to, [place], is_unclean=True, is_told=False)  # type: ignore[list-item]
        return real(name, keys, args)

    scripts.run = run  # type: ignore[method-assign]


@pytest.mark.parametrize("at_call", [1, 2, 3, 4, 5, 6, 7])
def test_a_zombie_writes_nothing_and_goes_on_with_its_other_partitions(
    redis_url: str, at_call: int, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalJob(redis_url, sequence_pipeline()) as job:
        job.send(numbered(KEYS, 10), split="a")
        job.send(numbered(["other"], 10), split="b")
        old = job.worker("old")
        take_over_before_commit(job, old, "new", at_call)
        job.assign("old")
        job.run_until_idle()
        before = len(old.places)

        job.look()
        job.run_to_the_end()

        assert_sequence(job, [*KEYS, "other"], 10)
        fenced = [end for name, _, end in job.ends if end is SliceEnd.FENCED]
        assert len(fenced) == 1
        assert before == 3
        assert sorted(old.places + job.worker("new").places) == job.places
        assert "another worker has taken over" in caplog.text


def test_a_fenced_commit_leaves_redis_as_it_was(redis_url: str) -> None:
    with LocalJob(redis_url, sequence_pipeline(), partitions=1) as job:
        old = job.worker("old")
        job.assign("old")
        job.send(numbered(KEYS, 3))
        job.assign("new", [(0, 0)], is_told=False)
        before = {key: job.client.dump(key) for key in job.client.keys("*")}

        assert old.slice(0, 0) is SliceEnd.FENCED

        assert {key: job.client.dump(key) for key in job.client.keys("*")} == before
        assert old.places == [(1, 0)]


# Lost requests and replies.


def scenario(job: LocalJob, feed: Callable[[LocalJob], None]) -> None:
    job.assign(is_told=False)
    look = job.look

    def look_again() -> None:
        """As Owning does when the table cannot be read."""
        try:
            look()
        except StoreUnavailable:
            look()

    job.look = look_again  # type: ignore[method-assign]
    feed(job)
    job.run_and_sweep()
    job.end_input()
    job.run_and_sweep()


def feed_sequence(job: LocalJob) -> None:
    for number in range(3):
        job.send(numbered(KEYS, 4, first=4 * number + 1))
        job.run_and_sweep()


@pytest.mark.sampled
@pytest.mark.parametrize("takes_tickets", [False, True])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_request_or_reply_lost_at_any_call_changes_no_result(
    redis_url: str, moment: Moment, takes_tickets: bool
) -> None:
    for at in calls():
        pipeline = sequence_pipeline(stages=2)
        with LocalJob(redis_url, pipeline, partitions=1, job=f"j{at}", takes_tickets=takes_tickets) as job:
            job.worker()
            job.scripts["w0"].break_call(moment, at)
            scenario(job, feed_sequence)
            total = len(job.scripts["w0"].calls)

            assert_sequence(job, KEYS, 12)
            job.assert_done()
            job.client.flushdb()
        if at > total:
            break
    assert at > 15


def jsonl_pipeline(folder: Path) -> Pipeline:
    flow = Pipeline("rows")
    keyed = flow.source(read.iterable([0]), name="in").key_by(lambda pair: pair[0], name="by")
    keyed.map(lambda pair: pair[1], name="number").sink(write.text(folder), name="rows")
    return flow


def published_rows(job: LocalJob, folder: Path) -> list[str]:
    facts = [StagedFacts.decode(raw) for raw in job.jobs.staged_files(job.job).get("rows", [])]
    publish(job.plan.sinks[0], job.job, facts)
    return sorted(line for part in folder.glob("part-*") for line in part.read_text().splitlines())


@pytest.mark.sampled
@pytest.mark.parametrize("moment", ["before", "after"])
def test_published_rows_are_exact_when_any_request_or_reply_is_lost(
    redis_url: str, tmp_path: Path, moment: Moment
) -> None:
    expected = sorted(f"{key}: {number}" for key, number in numbered(KEYS, 12))
    for at in calls():
        folder = tmp_path / str(at)
        with LocalJob(redis_url, jsonl_pipeline(folder), partitions=1, job=f"j{at}") as job:
            job.worker()
            job.scripts["w0"].break_call(moment, at)
            scenario(job, feed_sequence)
            total = len(job.scripts["w0"].calls)

            assert published_rows(job, folder) == expected
            job.client.flushdb()
        if at > total:
            break
    assert at > 12


@pytest.mark.parametrize("at_call", [1, 2, 3, 4, 5])
def test_rows_of_a_zombie_are_not_published(redis_url: str, tmp_path: Path, at_call: int) -> None:
    folder = tmp_path / "out"
    with LocalJob(redis_url, jsonl_pipeline(folder), partitions=1, limits=Limits(step_records=8)) as job:
        job.send(numbered(KEYS, 6))
        take_over_before_commit(job, job.worker("old"), "new", at_call)
        job.assign("old")
        job.run_and_sweep()
        job.run_to_the_end()

        assert published_rows(job, folder) == sorted(f"{key}: {number}" for key, number in numbered(KEYS, 6))


# Random schedules.


@pytest.mark.sampled
@pytest.mark.parametrize("seed", some(range(8)))
def test_a_random_schedule_of_faults_takeovers_and_restarts_keeps_the_sequence(redis_url: str, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    limits = Limits(
        step_records=rng.choice([3, 50, 8000]),
        inbox_records=rng.choice([40, 200]),
        cache_bytes=rng.choice([1000, 1 << 20]),
        entry_bytes=rng.choice([100, 1 << 20]),
    )
    names = [f"k{i}" for i in range(30)]
    sent = {"a": 0, "b": 0}
    with LocalJob(
        redis_url,
        sequence_pipeline(stages=rng.choice([1, 2, 3])),
        partitions=rng.choice([1, 2, 3]),
        limits=limits,
        clock=SteppingClock(rng.choice([0.0, 0.004])),
        takes_tickets=rng.random() < 0.5,
    ) as job:
        for place in job.places:
            job.assign(rng.choice(["w0", "w1", "w2"]), [place])
        for _ in range(150):
            # A worker that dies when its word "this record is through" was lost seems to be killed by the record.
            for scripts in job.scripts.values():
                scripts.spared = frozenset({"trying", "load"})
            disturb(job, rng, names, sent)
        for scripts in job.scripts.values():
            scripts.faults.clear()
        for split in sent:
            for _ in range(12):
                job.run_and_sweep()
                send_some(job, rng, names, sent, split)
        job.run_and_sweep()
        job.assert_drained()
        job.end_input()
        job.run_and_sweep()

        assert job.letters() == []
        assert job.by_key() == {
            f"{split}/{name}": list(range(1, number + 1)) for split, number in sent.items() for name in names
        }
        job.assert_done()


def send_some(job: LocalJob, rng: random.Random, names: list[str], sent: dict[str, int], split: str) -> None:
    lane = job.lane(split)
    facts = next(p for p in job.jobs.facts(job.job).partitions if lane._keys[0].endswith(f":{p.stage}.{p.partition}"))
    if facts.backlog + len(names) > job.limits.inbox_records:
        return
    sent[split] += 1
    job.send([[f"{split}/{name}", sent[split]] for name in names], split, entry_records=rng.choice([1, 4, 30]))


def disturb(job: LocalJob, rng: random.Random, names: list[str], sent: dict[str, int]) -> None:
    name = rng.choice(list(job.workers))
    try:
        match rng.choice(["send", "send", "serve", "slice", "slice", "take over", "fault", "restart", "look", "sweep"]):
            case "send":
                send_some(job, rng, names, sent, rng.choice(list(sent)))
            case "serve":
                job.serve()
            case "slice":
                place = rng.choice(job.places)
                if job.pop_ticket(place):
                    job.slice(name, place)
            case "take over":
                job.assign(name, [rng.choice(job.places)], is_unclean=False, is_told=rng.random() < 0.5)
            case "fault":
                job.scripts[name].break_call(rng.choice(["before", "after"]), rng.randint(1, 4))
            case "restart":
                job.restart(name)
            case "look":
                job.look()
            case "sweep":
                job.sweep()
    except StoreUnavailable:
        pass  # injected: whoever looks at the table tries again
