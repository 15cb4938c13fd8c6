"""Another number of partitions while records flow: exactly once, in the order of each key, with all its time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import ErrorPolicy, KeyedOperator, Pipeline, dead_letter, hold_key, read, write
from pipeline.kernel.contract import Emitted, TimerChanges
from pipeline.lifecycle import JobState
from pipeline.messages import Watermark, encode_header
from pipeline.operations import Phase
from pipeline.savepoints.export import take_savepoint
from pipeline.savepoints.places import LocalPlace
from pipeline.savepoints.reading import Savepoint
from pipeline.settings import Limits
from pipeline.store.letters import LetterStore
from tests.runtime.harness import LocalJob, assert_sequence, in_sequence, numbered, sequence_pipeline
from tests.sampling import some

KEYS = [f"k{number}" for number in range(40)]
SMALL = Limits(step_records=7)

Make = Callable[..., LocalJob]


@pytest.fixture
def make(redis_url: str) -> Iterator[Make]:
    made: list[LocalJob] = []

    def job(pipeline: Pipeline, **options: Any) -> LocalJob:
        made.append(LocalJob(redis_url, pipeline, **options))
        return made[-1]

    yield job
    for one in made:
        one.__exit__()


def serve_some(job: LocalJob, rounds: int) -> None:
    for _ in range(rounds):
        job.serve()


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (1, 3), (3, 1), (5, 8), (2, 40)])
def test_records_before_and_behind_a_switch_are_applied_once_and_in_order(make: Make, before: int, after: int) -> None:
    job = make(sequence_pipeline(2), partitions=before, limits=SMALL)
    job.assign()
    job.send(numbered(KEYS, 3))
    serve_some(job, 2)

    for stage in (1, 2):
        job.begin_rescale(stage, after)
        assert job.switch() == "switched"
        job.send(numbered(KEYS, 3, 4 if stage == 1 else 10))
        serve_some(job, 2)
        job.assign("w0", job.homeless())
        job.send(numbered(KEYS, 3, 7 if stage == 1 else 13))
        job.run_until_idle()
        assert job.settle()

    assert [stage.serving for stage in job.plan.stages] == [before, after, after]
    job.run_to_the_end()
    assert_sequence(job, KEYS, 15)


def test_a_stage_goes_down_and_up_again_and_its_partitions_come_back(make: Make) -> None:
    job = make(sequence_pipeline(2), partitions=8, limits=SMALL)
    job.assign()
    first = 1
    for stage, partitions in [(1, 3), (2, 3), (1, 8), (2, 8), (1, 2), (1, 5)]:
        job.send(numbered(KEYS, 2, first))
        job.rescale(stage, partitions)
        first += 2
    job.send(numbered(KEYS, 2, first))

    job.run_to_the_end()

    assert_sequence(job, KEYS, first + 1)
    assert job.jobs.facts("j").operation is None


@pytest.mark.parametrize(("before", "after"), [(4, 7), (7, 4)])
def test_owners_that_hear_of_a_switch_serve_its_stage_before_all_tickets(make: Make, before: int, after: int) -> None:
    job = make(sequence_pipeline(2), partitions=before, limits=SMALL)
    job.assign()
    job.send(numbered(KEYS, 3))
    job.run_until_idle()
    job.begin_rescale(1, after)
    job.switch()
    job.assign("w0", job.homeless(), is_told=False)
    job.ends.clear()

    job.look()

    served = [place for _, place, _ in job.ends]
    assert set(served) == {(1, number) for number in range(max(before, after))}
    removed = [(1, number) for number in range(after, before)]
    assert served[: len(removed)] == removed
    assert not any(job.meta((1, number)).get("gate", "0") != "0" for number in range(after))
    job.run_until_idle()
    assert job.settle()
    job.run_to_the_end()
    assert_sequence(job, KEYS, 3)


def two_branches() -> Pipeline:
    """Two stages behind one source, and one behind another source, each with the sequence oracle at its end."""
    flow = Pipeline("branches")
    left = flow.source(read.producer(), name="in_left").key_by(lambda pair: pair[0], name="left_hop")
    left = left.stateful_map(lambda _key, pair, state: (pair, state)).key_by(lambda pair: pair[0], name="left_by")
    right = flow.source(read.producer(), name="in_right").key_by(lambda pair: pair[0], name="right_by")
    for name, branch in (("left", left), ("right", right)):
        numbers = branch.map(lambda pair: pair[1], name=f"{name}_number")
        numbers.stateful_map(in_sequence, name=f"{name}_oracle").sink(write.stream(name), name=name)
    return flow


def send_both(job: LocalJob, count: int, first: int) -> None:
    job.send(numbered(KEYS, count, first), "a", "in_left")
    job.send(numbered(KEYS, count, first), "b", "in_right")


def test_partitions_that_a_switch_does_not_concern_keep_all_that_they_know(make: Make) -> None:
    job = make(two_branches(), limits=SMALL)
    job.assign()
    send_both(job, 3, 1)
    job.run_until_idle()
    first, behind, beside = (_stage(job, name) for name in ("left_hop", "left_by", "right_by"))

    kept = job.workers["w0"].owner((beside, 0))
    assert kept is not None
    cached = kept.cache.keys
    assert cached > 0

    job.begin_rescale(first, 5)
    assert job.switch() == "switched"
    job.look()
    read_anew = [place for place in job.places if place in job.workers["w0"]._stale]
    send_both(job, 3, 4)
    job.run_until_idle()

    assert {stage for stage, _ in read_anew} <= {first, behind}
    assert read_anew
    assert kept.cache.keys == cached
    job.assign("w0", job.homeless())
    job.run_until_idle()
    assert job.settle()
    job.run_to_the_end()
    assert job.by_key("left") == job.by_key("right") == {key: [1, 2, 3, 4, 5, 6] for key in KEYS}


def _stage(job: LocalJob, name: str) -> int:
    return next(stage.index for stage in job.plan.stages if stage.name == name)


# Time.


class Windows(KeyedOperator):
    """Counts what comes, [.., time, count] in windows of `size`; a count is emitted when time has passed its end.

    A record of a window that has been emitted is an error: time was ahead of the records.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def process(self, keys: list[Any], values: list[Any], state: dict[Any, Any], timers: TimerChanges) -> Emitted:
        for key, (time, count) in zip(keys, values, strict=True):
            end = (time // self.size + 1) * self.size
            fired, open_ = state.get(key, [0, {}])
            assert end > fired, f"{key}: {time} came behind the window that ends at {fired}"
            if str(end) not in open_:
                timers.set(key, end)
            open_[str(end)] = open_.get(str(end), 0) + count
            state[key] = [fired, open_]
        return Emitted([], [])

    def on_timer(self, keys: Any, dues: Any, state: dict[Any, Any], timers: TimerChanges) -> Emitted:
        found = []
        for key, due in zip(keys, dues, strict=True):
            fired, open_ = state[key]
            assert due > fired, f"{key}: the window {due} was emitted after {fired}"
            found.append([key, due, open_.pop(str(due))])
            state[key] = [due, open_]
        return Emitted(found)


def windows_pipeline() -> Pipeline:
    """Records [key, number, time] -> `by_key`: sequence, windows of 10 -> `by_rest`: windows of 50 -> out."""
    flow = Pipeline("windows")
    (
        flow.source(read.iterable([0]), name="in")
        .key_by(lambda row: row[0], name="by_key")
        .stateful_map(lambda key, row, last: ([row[2], 1], in_sequence(key, row[1], last)[0]), name="oracle")
        .process(Windows(10), name="tens")
        .key_by(lambda row: int(row[0][1:]) % 7, name="by_rest")
        .map(lambda row: row[1:], name="counted")
        .process(Windows(50), name="fifties")
        .sink(write.stream("out"), name="out")
    )
    return flow


def expected_windows(rows: list[list[Any]]) -> dict[tuple[int, int], int]:
    """(key of the second stage, end) -> count, as no job at all would find it."""
    found: dict[tuple[int, int], int] = {}
    for key, _, time in rows:
        first = (time // 10 + 1) * 10
        at = (int(key[1:]) % 7, (first // 50 + 1) * 50)
        found[at] = found.get(at, 0) + 1
    return found


class Timed:
    """Sends rows whose times grow, and promises of time through the entry stage."""

    def __init__(self, job: LocalJob) -> None:
        self.job = job
        self.rows: list[list[Any]] = []
        self.now = 0
        self.numbers: dict[str, int] = {}

    def send(self, count: int, rng: random.Random) -> None:
        rows = []
        for _ in range(count):
            key = rng.choice(KEYS)
            self.numbers[key] = self.numbers.get(key, 0) + 1
            rows.append([key, self.numbers[key], self.now + rng.randrange(25)])
        self.rows += rows
        self.job.send(rows)

    def promise(self, later: int) -> None:
        """No later row is older than this."""
        self.now += later
        for number in range(self.job.plan.stages[0].partitions):
            self.job.append_entry((0, number), encode_header(Watermark("source", self.now)))

    def assert_right(self) -> None:
        assert self.job.letters() == []
        found = self.job.values()
        assert len(found) == len({(key, end) for key, end, _ in found})
        assert {(key, end): count for key, end, count in found} == expected_windows(self.rows)


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (8, 3), (3, 8)])
def test_windows_are_whole_and_no_record_is_late_around_a_switch(make: Make, before: int, after: int) -> None:
    job, rng = make(windows_pipeline(), partitions=before, limits=SMALL), random.Random(before)
    timed = Timed(job)
    job.assign()
    for stage in (1, 2):
        timed.send(60, rng)
        serve_some(job, 1)
        timed.promise(20)
        serve_some(job, 1)
        timed.send(60, rng)
        job.begin_rescale(stage, after)
        assert job.switch() == "switched"
        timed.promise(20)
        job.assign("w0", job.homeless())
        serve_some(job, 2)
        timed.send(60, rng)
        timed.promise(20)
        job.run_until_idle()
        assert job.settle()
        assert {job.meta((stage, number)).get("watermark") for number in range(after)} == {str(timed.now)}

    job.run_to_the_end()

    timed.assert_right()


@pytest.mark.sampled
@pytest.mark.parametrize("seed", some(range(24)))
def test_rescales_at_any_moment_among_steps_kills_and_takeovers(make: Make, seed: int) -> None:
    rng = random.Random(seed)
    job = make(windows_pipeline(), partitions=rng.randint(1, 6), limits=Limits(step_records=rng.choice([3, 10, 8000])))
    timed = Timed(job)
    job.assign("w0", [place for place in job.places if place[1] % 2])
    job.assign("w1", [place for place in job.places if not place[1] % 2])
    rescales = 0
    for _ in range(60):
        match rng.randrange(9):
            case 0 | 1:
                timed.send(rng.randint(1, 30), rng)
            case 2:
                timed.promise(rng.randint(1, 15))
            case 3 | 4:
                job.serve()
            case 5:
                job.restart(rng.choice(["w0", "w1"]))
            case 6:
                places = rng.sample(job.places, rng.randint(0, len(job.places)))
                job.assign(rng.choice(["w0", "w1"]), places, is_told=rng.random() < 0.5)
            case 7 | 8:
                rescales += advance(job, rng)
    for _ in range(100):
        if job.jobs.facts("j").operation is None:
            break
        job.run_and_sweep()
        rescales += advance(job, rng)

    job.end_input()
    job.run_and_sweep()

    job.assert_done()
    timed.assert_right()
    assert job.jobs.facts("j").operation is None
    assert rescales > 1


def advance(job: LocalJob, rng: random.Random) -> int:
    """The next thing that is done to an operation; another leader may do it. How many were ended."""
    if rng.random() < 0.3:
        job.client.hset("celeriac:{j}:leader", "until", 0)
        job.token = job.leader.hold("j", 600).token
    facts = job.jobs.facts("j")
    if facts.operation is None:
        stage = facts.record.plan.stage(rng.choice([1, 2]))
        job.begin_rescale(stage.index, rng.choice([n for n in (1, 2, 3, 5, 8, 13) if n != stage.serving]))
    elif facts.operation.phase is Phase.WAITING:
        assert job.switch() in ("switched", "not yet")
    elif homeless := job.homeless():
        job.assign(rng.choice(["w0", "w1"]), homeless)
    else:
        return job.settle()
    return 0


# What else belongs to a key.

broken: set[str] = set()


def work(value: str) -> str:
    if value in broken:
        raise ValueError(f"cannot work on {value}")
    return value


def fragile(policy: ErrorPolicy) -> Pipeline:
    """Values are a letter, which is the key, and a number."""
    flow = Pipeline("fragile")
    keyed = flow.source(read.producer(), name="in").key_by(lambda value: value[0], name="by", on_error=policy)
    keyed.map(work, name="work").sink(write.stream("out"), name="out")
    return flow


@pytest.mark.parametrize(("before", "after"), [(1, 5), (5, 1), (2, 3)])
def test_a_held_key_goes_on_in_order_at_the_partition_that_serves_it_now(make: Make, before: int, after: int) -> None:
    broken.clear()
    broken.update(f"{letter}1" for letter in "abcdefgh")
    job = make(fragile(hold_key()), partitions=before)
    job.assign()
    letters = LetterStore(job._scripts, job.jobs.read("j"))  # it knows the plan of before
    job.send([f"{letter}{number}" for number in (1, 2) for letter in "abcdefgh"])
    job.run_until_idle()
    job.send([f"{letter}3" for letter in "abcdefgh"])
    job.slice("w0", (0, 0))
    job.begin_rescale(1, after)
    job.switch()
    job.send([f"{letter}4" for letter in "abcdefgh"])
    broken.clear()
    for letter in list(letters.read())[:4]:
        letters.replay(letter)
    job.assign("w0", job.homeless())
    job.run_until_idle()
    assert job.settle()
    job.send([f"{letter}5" for letter in "abcdefgh"])
    job.run_until_idle()
    for letter in list(letters.read()):
        letters.replay(letter)
    job.run_until_idle()

    assert job.by_key() == {letter: [f"{letter}{number}" for number in range(1, 6)] for letter in "abcdefgh"}
    assert job.jobs.facts("j").held == 0
    job.run_to_the_end()


def test_a_dead_letter_is_put_back_where_its_key_is_served_now(make: Make) -> None:
    broken.clear()
    broken.update({"a1", "b1", "c1"})
    job = make(fragile(dead_letter()), partitions=4)
    job.assign()
    letters = LetterStore(job._scripts, job.jobs.read("j"))
    job.send(["a1", "b1", "c1"])
    job.run_until_idle()
    job.rescale(1, 1)
    broken.clear()

    for letter in list(letters.read()):
        letters.replay(letter)
    job.run_until_idle()

    assert sorted(job.values()) == ["a1", "b1", "c1"]
    assert job.facts((1, 0)).taken == 3
    job.run_to_the_end()


@pytest.mark.parametrize("others", [1, 2, 5])
def test_a_savepoint_of_a_rescaled_job_is_restored_with_any_number(
    make: Make, redis_url: str, tmp_path: Path, others: int
) -> None:
    job = make(sequence_pipeline(2), partitions=2, limits=SMALL)
    job.assign()
    job.send(numbered(KEYS, 2))
    job.rescale(1, 5)
    job.send(numbered(KEYS, 2, 3))
    job.rescale(2, 1)
    job.send(numbered(KEYS, 2, 5))
    serve_some(job, 1)
    place = LocalPlace(tmp_path)
    take_savepoint(job._scripts, job.jobs.read("j"), place, "s", ends=JobState.CANCELLED)

    with LocalJob(
        redis_url, sequence_pipeline(2), partitions=others, job="k", savepoint=Savepoint(place, "s")
    ) as restored:
        restored.assign()
        restored.send(numbered(KEYS, 2, 7))
        restored.run_to_the_end()
        assert restored.letters() == []
        assert restored.state(2) == {("oracle", key): 8 for key in KEYS}
    job.is_tampered = True


def test_an_upstream_that_found_an_inbox_full_routes_anew(make: Make) -> None:
    limits = Limits(step_records=5, inbox_records=10)
    job = make(sequence_pipeline(), partitions=1, limits=limits)
    job.assign()
    for first in range(1, 9):
        job.send(numbered(KEYS[:5], 1, first))
        job.slice("w0", (0, 0))
        if job.meta((0, 0)).get("ring") == "w":
            break
    assert job.meta((0, 0))["ring"] == "w"

    job.rescale(1, 4)

    job.run_to_the_end()
    assert_sequence(job, KEYS[:5], first)
