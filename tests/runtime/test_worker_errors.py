"""User errors end as dead letters, one for each record that failed; everything else is exact. Unclean deaths, too."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pipeline import KeyedOperator, Pipeline, Stream, count, read, write
from pipeline.aggregates import Aggregation
from pipeline.codec import decode_batch, encode_batch
from pipeline.kernel.contract import Emitted, TimerChanges
from pipeline.keying import GROUPS
from pipeline.lifecycle import JobState
from pipeline.messages import Data, encode_header
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.sinks.publisher import publish
from pipeline.sinks.staging import StagedFacts
from pipeline.store import keys
from stages.partition import SliceEnd
from tests.runtime.harness import LocalJob, SteppingClock, numbered, oracle_of
from tests.sampling import some


def source(name: str = "in") -> Stream:
    return Pipeline("errors").source(read.iterable([0]), name=name)


def run(job: LocalJob, values: list[Any], **options: Any) -> LocalJob:
    job.assign()
    job.send(values, **options)
    job.run_to_the_end()
    return job


def refuse(value: Any) -> Any:
    if value["n"] % 3 == 0:
        raise ValueError(f"no {value['n']}")
    return value


def records(n: int) -> list[dict[str, Any]]:
    return [{"k": "ba"[i % 2], "n": i} for i in range(1, n + 1)]


STATELESS: dict[str, Any] = {
    "map": lambda s: s.map(refuse, name="bad"),
    "filter": lambda s: s.filter(refuse, name="bad"),
    "flat_map": lambda s: s.flat_map(lambda v: [refuse(v)], name="bad"),
    "generator": lambda s: s.flat_map(lambda v: (refuse(x) for x in [v]), name="bad"),
    "key_by": lambda s: s.key_by(lambda v: refuse(v)["k"], name="bad"),
}


@pytest.mark.parametrize("kind", STATELESS)
def test_records_that_a_stateless_function_refuses_are_dead_letters_and_no_others(redis_url: str, kind: str) -> None:
    stream = STATELESS[kind](source())
    stream.key_by(lambda v: v["k"], name="k").aggregate(count(), name="n").sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline) as job:
        run(job, records(20))

        assert job.newest() == {"a": 7, "b": 7}
        assert job.by_key() == {"a": list(range(1, 8)), "b": list(range(1, 8))}
        assert [value["n"] for value in job.dead_values()] == [3, 6, 9, 12, 15, 18]
        letter = job.letters()[0]
        assert (letter.stage, letter.operator, letter.error) == (0, "bad", "ValueError: no 3")
        assert "in refuse" in letter.traceback
        assert "raise ValueError" in letter.traceback
        assert decode_batch(letter.payload).values == [{"k": "a", "n": 3}]
        assert sum(p.dead for p in job.jobs.facts(job.job).partitions) == 6


def broken_add(state: list[int], value: dict[str, Any]) -> list[int]:
    state.append(value["n"])  # in place, before it fails
    refuse(value)
    return state


def broken_step(_key: Any, value: dict[str, Any], state: list[int] | None) -> tuple[list[int], list[int]]:
    state = state if state is not None else []
    broken_add(state, value)
    return list(state), state


STATEFUL: dict[str, Any] = {
    "aggregate": lambda s: s.aggregate(Aggregation("all", list, broken_add, lambda state: state), name="bad"),
    "stateful_map": lambda s: s.stateful_map(broken_step, name="bad"),
    "reduce": lambda s: s.map(lambda v: [v["n"]], name="one").reduce(
        lambda held, one: broken_add(held, {"n": one[0]}), name="bad"
    ),
}


@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.parametrize("step_records", [4, 8000])
def test_state_that_was_changed_before_the_error_is_as_if_the_record_had_not_been(
    redis_url: str, kind: str, step_records: int
) -> None:
    stream = STATEFUL[kind](source().key_by(lambda v: v["k"], name="k"))
    stream.sink(write.stream("out"), name="out")
    good = {"a": [n for n in range(1, 31, 2) if n % 3], "b": [n for n in range(2, 31, 2) if n % 3]}

    with LocalJob(redis_url, stream.pipeline, limits=Limits(step_records=step_records)) as job:
        run(job, records(30))

        assert job.newest() == good
        assert job.by_key() == {key: [ns[: i + 1] for i in range(len(ns))] for key, ns in good.items()}
        assert {key: value for (_, key), value in job.state().items()} == good
        assert sorted(value if isinstance(value, int) else _number(value) for value in job.dead_values()) == [
            *range(3, 31, 3)
        ]
        assert {letter.operator for letter in job.letters()} == {"bad"}


def _number(value: Any) -> int:
    return int(value["n"] if isinstance(value, dict) else value[0])


@pytest.mark.parametrize("entry_records", [0, 2])
def test_values_that_a_function_changed_before_another_failed_are_run_from_their_stored_form(
    redis_url: str, entry_records: int
) -> None:
    def grow(value: dict[str, Any]) -> dict[str, Any]:
        value["n"] += 100
        if value["n"] == 103:
            raise ValueError("no")
        return value

    source_ = source()
    source_.map(grow, name="grow").map(lambda v: v["n"], name="n").sink(write.stream("out"), name="out")

    with LocalJob(redis_url, source_.pipeline, partitions=1) as job:
        job.send(records(4), entry_records=entry_records)
        run(job, records(4), split="b", entry_records=3)

        assert job.values() == [101, 102, 104, 101, 102, 104]
        assert job.dead_values() == [{"k": "a", "n": 3}] * 2


def test_the_order_of_each_key_is_kept_around_dead_letters(redis_url: str) -> None:
    def pick(pair: list[Any]) -> list[Any]:
        if pair[1] == "bad":
            raise ValueError("bad")
        return pair

    stream = source().map(pick, name="pick")
    oracle_of(stream).sink(write.stream("out"), name="out")
    values: list[list[Any]] = []
    for pair in numbered(["a", "b", "c"], 20):
        values += [pair, [pair[0], "bad"]] if pair[1] % 4 == 0 else [pair]

    with LocalJob(redis_url, stream.pipeline) as job:
        run(job, values, entry_records=7)

        assert job.by_key() == {key: list(range(1, 21)) for key in "abc"}
        assert len(job.letters()) == 15


class Opaque:
    """Neither JSON nor MessagePack knows it."""


UNSTORABLE: dict[str, tuple[Any, str]] = {
    "an output": (lambda s: s.map(lambda v: Opaque() if v["n"] == 2 else v, name="bad"), "cannot be encoded"),
    "a huge integer": (lambda s: s.map(lambda v: 2**70 if v["n"] == 2 else v, name="bad"), "cannot be encoded"),
    "a large output": (lambda s: s.map(lambda v: "x" * 5000 if v["n"] == 2 else v, name="bad"), "limit of 1000"),
    "text that is none": (lambda s: s.map(lambda v: "\ud800" if v["n"] == 2 else v, name="bad"), "cannot be encoded"),
}


@pytest.mark.parametrize("kind", UNSTORABLE)
def test_an_output_that_cannot_be_stored_makes_its_record_a_dead_letter(redis_url: str, kind: str) -> None:
    build, why = UNSTORABLE[kind]
    stream = build(source())
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline, limits=Limits(record_bytes=1000)) as job:
        run(job, records(4))

        assert [value["n"] for value in job.values()] == [1, 3, 4]
        assert [value["n"] for value in job.dead_values()] == [2]
        assert why in job.letters()[0].error


@pytest.mark.parametrize("state", [Opaque(), "x" * 5000])
def test_a_state_that_cannot_be_stored_makes_its_record_a_dead_letter(redis_url: str, state: Any) -> None:
    def keep(_key: Any, value: dict[str, Any], held: Any) -> tuple[Any, Any]:
        return [value["n"], held], state if value["n"] == 4 else value["n"]

    stream = source().key_by(lambda v: v["k"], name="k").stateful_map(keep, name="bad")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline, limits=Limits(record_bytes=1000)) as job:
        run(job, records(8))

        assert job.by_key() == {"a": [[1, None], [3, 1], [5, 3], [7, 5]], "b": [[2, None], [6, 2], [8, 6]]}
        assert [value["n"] for value in job.dead_values()] == [4]


@pytest.mark.parametrize("key", [1.5, True, None, ["x"], {"a": 1}, ("x", 1.5)])
def test_a_key_of_a_wrong_type_makes_its_record_a_dead_letter_with_a_hint(redis_url: str, key: Any) -> None:
    stream = source().key_by(lambda v: key if v["n"] == 3 else v["k"], name="bad").aggregate(count(), name="n")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline) as job:
        run(job, records(6))

        assert job.newest() == {"a": 2, "b": 3}
        assert [value["n"] for value in job.dead_values()] == [3]
        assert job.letters()[0].operator == "bad"
        assert "a key must be text" in job.letters()[0].error


def test_an_error_whose_text_cannot_be_stored_or_is_endless_is_still_a_dead_letter(redis_url: str) -> None:
    def fail(value: dict[str, Any]) -> Any:
        raise ValueError("\ud800" if value["n"] == 1 else "x" * 1_000_000)

    stream = source().map(fail, name="bad")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline) as job:
        run(job, records(2))

        assert [letter.error[:20] for letter in job.letters()] == ["ValueError: \\ud800", "ValueError: " + "x" * 8]
        assert all(len(letter.error) <= 2000 for letter in job.letters())


def test_faults_of_the_source_are_dead_letters_with_their_reason(redis_url: str) -> None:
    stream = source().map(lambda v: v, name="same")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline) as job:
        job.assign()
        job.lane().append(1, Batch([1, "raw", 3, "raw too"], faults={1: "line 2 is no number", 3: "line 4"}))
        job.run_to_the_end()

        assert job.values() == [1, 3]
        assert [(letter.error, letter.operator) for letter in job.letters()] == [
            ("line 2 is no number", ""),
            ("line 4", ""),
        ]
        assert job.dead_values() == ["raw", "raw too"]


def test_faults_are_counted_once_when_their_batch_fails_too(redis_url: str) -> None:
    stream = source().map(refuse, name="bad")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline) as job:
        job.assign()
        job.lane().append(1, Batch([{"n": 1}, "raw", {"n": 3}], faults={1: "line 2"}))
        job.run_to_the_end()

        assert job.values() == [{"n": 1}]
        assert sorted(map(str, job.dead_values())) == ["raw", "{'n': 3}"]
        assert job.facts(job.places[1]).dead + job.facts(job.places[0]).dead == 2


POISON = {
    "no payload of ours": b"\xff\xff\xff",
    "another version": b"\x09\x01" + encode_batch(Batch([1, 2]))[2:],
    "fewer records than announced": encode_batch(Batch([1])),
    "a fault of a record that is not there": encode_batch(Batch([1, 2], faults={7: "why"})),
}


@pytest.mark.parametrize("kind", POISON)
def test_a_payload_that_cannot_be_read_is_one_dead_letter_and_the_next_entry_is_handled(
    redis_url: str, kind: str
) -> None:
    stream = source().map(lambda v: v, name="same")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline, partitions=1) as job:
        job.send(["before"])
        job.append_entry((0, 0), encode_header(Data("7", 1, 2, None, 1)), POISON[kind], 2)
        job.send(["behind"])
        job.assign()
        job.end_input()
        job.run_until_idle()

        assert job.values() == ["before", "behind"]
        assert [letter.payload for letter in job.letters()] == [POISON[kind]]
        assert (job.facts((0, 0)).taken, job.facts((0, 0)).dead, job.facts((0, 0)).backlog_bytes) == (4, 2, 0)
        job.assert_drained()


@pytest.mark.parametrize("header", [b'["X","who"]', b"not json", b'["D","7",1]'])
@pytest.mark.parametrize("place", ["last", "middle"])
def test_a_header_that_cannot_be_read_fails_the_job_and_is_never_skipped(
    redis_url: str, header: bytes, place: str
) -> None:
    stream = source().map(lambda v: v, name="same")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline, partitions=1) as job:
        job.send(["before"])
        job.append_entry((0, 0), header)
        if place == "middle":
            job.send(["behind"])
        job.assign()
        job.run_until_idle()

        record = job.jobs.read(job.job)
        assert record.state is JobState.FAILED
        assert "unreadable header" in record.reason
        assert "behind" not in job.values()
        assert job.worker().places == [] or job.worker().slice(0, 0) is SliceEnd.STOPPED


@pytest.mark.parametrize("divisor", [3, 1000])
def test_rows_of_a_file_sink_are_exact_around_dead_letters_and_one_file_is_enough(
    redis_url: str, tmp_path: Path, divisor: int
) -> None:
    stream = source().map(lambda v: v if v["n"] % divisor else 1 / 0, name="bad").map(lambda v: v["n"], name="n")
    stream.sink(write.jsonl(tmp_path / "one"), name="one")
    stream.map(lambda n: n if n % 5 else Opaque(), name="odd").sink(write.jsonl(tmp_path / "two"), name="two")

    with LocalJob(redis_url, stream.pipeline, partitions=1, limits=Limits(step_records=10)) as job:
        run(job, records(60), entry_records=6)
        staged = job.jobs.staged_files(job.job)
        for sink in job.plan.sinks:
            publish(sink, job.job, [StagedFacts.decode(raw) for raw in staged[sink.name]])

        good = [n for n in range(1, 61) if n % divisor and n % 5]
        for name in ("one", "two"):
            lines = [line for part in sorted((tmp_path / name).glob("part-*")) for line in part.read_text().split()]
            assert lines == [str(n) for n in good]
            assert len(staged[name]) == 1
        assert len(job.letters()) == 60 - len(good)


class Alarm(KeyedOperator):
    """Sets a timer at the value's time; firing emits the due time and fails for those that are asked for."""

    def process(self, keys_: Any, values: Any, state: dict[Any, Any], timers: TimerChanges) -> Emitted:
        for key, due in zip(keys_, values, strict=True):
            timers.set(key, due)
            state[key] = state.get(key, 0) + 1
        return Emitted([], [])

    def on_timer(self, keys_: Any, dues: Any, state: dict[Any, Any], timers: TimerChanges) -> Emitted:
        out = []
        for key, due in zip(keys_, dues, strict=True):
            state[key] -= 1
            if due % 10 == 3:
                raise ValueError(f"no alarm at {due}")
            if due == 20:
                timers.clear(key, 30)
            if due == 40:
                timers.set(key, 45)
            if not state[key]:
                del state[key]
            out.append(due)
        return Emitted(out)


def test_a_timer_that_fails_is_a_dead_letter_and_the_others_fire_in_order(redis_url: str) -> None:
    stream = source().key_by(lambda v: v[0], name="k").map(lambda v: v[1], name="due").process(Alarm(), name="alarm")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline, partitions=1) as job:
        run(job, [["a", due] for due in (50, 40, 33, 30, 20, 13, 10)])

        assert job.values() == [10, 20, 40, 45, 50]
        assert [(letter.operator, letter.error) for letter in job.letters()] == [
            ("alarm", "ValueError: no alarm at 13"),
            ("alarm", "ValueError: no alarm at 33"),
        ]
        assert decode_batch(job.letters()[0].payload) == Batch([13], ["a"], None, ["alarm"])


def test_a_sink_that_cannot_be_written_fails_the_job_with_its_path(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    stream = source()
    stream.sink(write.jsonl(tmp_path / "file" / "out"), name="rows")

    with LocalJob(redis_url, stream.pipeline, partitions=1) as job:
        job.assign()
        job.send(records(3))
        job.run_until_idle()

        record = job.jobs.read("j")
        assert record.state is JobState.FAILED
        assert str(tmp_path / "file") in record.reason


# Unclean deaths.


def test_a_record_that_kills_its_worker_again_and_again_is_a_dead_letter_and_no_other(redis_url: str) -> None:
    deadly = {"is_on": True}

    class Killed(BaseException):
        """Stands for a signal: nothing catches it."""

    def kill(value: dict[str, Any]) -> dict[str, Any]:
        if value["n"] == 37 and deadly["is_on"]:
            raise Killed
        return value

    stream = source().map(kill, name="deadly").map(lambda v: v["n"], name="n")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline, partitions=1) as job:
        job.send(records(100))
        job.end_input()
        job.worker()
        deaths = 0
        start: Any = job.assign
        for _ in range(30):
            try:
                start()
                job.run_until_idle()
                break
            except Killed:
                deaths += 1
                start = lambda: job.restart("w0")  # noqa: E731

        assert job.values() == [n for n in range(1, 101) if n != 37]
        assert [(letter.error, letter.operator) for letter in job.letters()] == [("killed its worker 3 times", "")]
        assert [value["n"] for value in job.dead_values()] == [37]
        assert deaths <= 12
        job.assert_done()


def test_a_timer_that_kills_its_worker_again_and_again_is_a_dead_letter_and_no_other(redis_url: str) -> None:
    class Killed(BaseException):
        """Stands for a signal."""

    class Deadly(Alarm):
        def on_timer(self, keys_: Any, dues: Any, state: dict[Any, Any], timers: TimerChanges) -> Emitted:
            if 21 in dues:
                raise Killed
            return super().on_timer(keys_, dues, state, timers)

    stream = source().key_by(lambda v: v[0], name="k").map(lambda v: v[1], name="due").process(Deadly(), name="alarm")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline, partitions=1) as job:
        job.send([["a", due] for due in (10, 11, 21, 22)])
        job.assign()
        job.run_until_idle()
        job.end_input()
        for deaths in range(20):
            try:
                if deaths:
                    job.restart("w0")
                job.run_until_idle()
                break
            except Killed:
                continue

        assert job.values() == [10, 11, 22]
        assert [letter.error for letter in job.letters()] == ["killed its worker 3 times"]
        assert decode_batch(job.letters()[0].payload) == Batch([21], ["a"], None, ["alarm"])
        job.assert_done()


@pytest.mark.parametrize("deaths", [1, 2, 3, 5])
def test_idle_partitions_that_lose_their_worker_many_times_lose_nothing(redis_url: str, deaths: int) -> None:
    stream = source().map(lambda v: v["n"], name="n")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline, partitions=1, limits=Limits(deaths=deaths)) as job:
        job.assign()
        for _ in range(6):
            job.restart("w0")
        run(job, records(20))

        assert job.values() == list(range(1, 21))
        assert job.letters() == []


def test_a_worker_that_dies_while_it_waits_for_a_full_inbox_costs_no_record(redis_url: str) -> None:
    stream = source().map(lambda v: v["n"], name="n").key_by(lambda n: n, name="k").aggregate(count(), name="c")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline, partitions=1, limits=Limits(inbox_records=100)) as job:
        job.assign("w0", [(0, 0)])
        job.send(records(100))
        job.run_until_idle()
        job.send(records(50))
        for _ in range(8):
            job.restart("w0")
            job.run_until_idle()
        assert job.facts((0, 0)).ring == "w"
        job.assign("w1", [(1, 0)])
        job.run_to_the_end()

        assert job.letters() == []
        assert sorted(job.newest()) == list(range(1, 101))
        assert len(job.read()) == 150


def test_three_deaths_with_the_trial_at_a_record_give_up_that_record_alone(redis_url: str) -> None:
    stream = source().map(lambda v: v["n"], name="n")
    stream.sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline, partitions=1) as job:
        job.send(records(5))
        worker = job.worker()
        for _ in range(2):
            job.assign("w0", [(0, 0)], is_unclean=True, is_told=False)
        row = worker.ownership.assigned()[0]
        acquired = worker.ownership.acquire(row)
        assert acquired is not None
        assert acquired.deaths == 2
        worker.ownership.declare_trial(row, acquired.position)

        job.assign("w0", [(0, 0)], is_unclean=True)
        job.run_until_idle()

        assert job.values() == [2, 3, 4, 5]
        assert [letter.error for letter in job.letters()] == ["killed its worker 3 times"]
        assert "trying" not in job.meta((0, 0)) or job.meta((0, 0))["trying"] != "1-0/0"


def test_a_state_key_that_another_program_wrote_fails_the_job_and_says_so(redis_url: str) -> None:
    stream = source()
    stream.key_by(lambda v: v["k"], name="k").aggregate(count(), name="n").sink(write.stream("out"), name="out")

    with LocalJob(redis_url, stream.pipeline) as job:
        job.assign()
        for group in range(GROUPS):
            job.client.set(keys.state(job.job, 1, group), "not ours")
        job.send(records(4))
        job.run_until_idle()

        record = job.jobs.read(job.job)
        assert record.state is JobState.FAILED
        assert "a key of ours holds something else" in record.reason
        assert "another database" in record.reason


# Steps that are cut short.


@pytest.mark.sampled
@pytest.mark.parametrize("seed", some(range(5)))
def test_a_step_that_is_cut_short_counts_faults_and_repeated_ids_once(redis_url: str, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    flow = Pipeline("cut")
    stream = flow.source(read.producer(), name="in").map(lambda v: v if v % 7 else 1 // 0, name="sevenths_fail")
    stream.sink(write.stream("out"), name="out")
    seen: set[str] = set()
    good, bad = [], []

    with LocalJob(redis_url, flow, partitions=1, clock=SteppingClock(rng.choice([0.005, 1.0]))) as job:
        job.assign()
        for _ in range(20):
            numbers = [rng.randrange(1, 60) for _ in range(rng.randrange(1, 40))]
            ids = [f"id{number}" if rng.random() < 0.7 else None for number in numbers]
            faults = {index: "unreadable" for index in range(len(numbers)) if rng.random() < 0.2}
            job.lane().append(job.lane().taken + 1, Batch(numbers, faults=dict(faults)), ids=ids)
            for index, (number, own) in enumerate(zip(numbers, ids, strict=True)):
                if own is not None and own in seen:
                    continue
                seen |= {own} if own is not None else set()
                (bad if index in faults or number % 7 == 0 else good).append(number)
            if rng.random() < 0.5:
                job.run_until_idle()
        job.end_input()
        job.run_until_idle()

        assert job.values() == good
        assert sorted(job.dead_values()) == sorted(bad)
        assert job.facts((0, 0)).dead == len(bad)


def test_a_step_ends_when_it_has_emitted_enough(redis_url: str) -> None:
    stream = source().flat_map(lambda v: range(v), name="many")
    stream.sink(write.stream("out"), name="out")
    emitted: list[int] = []

    with LocalJob(redis_url, stream.pipeline, partitions=1, limits=Limits(step_outputs=1_000)) as job:
        job.assign()
        real = job.scripts["w0"].run

        def watch(name: str, keys_: Any, args: Any) -> list[Any]:
            if name == "commit":
                emitted.append(int(args[16]))
            return real(name, keys_, args)

        job.scripts["w0"].run = watch  # type: ignore[method-assign, assignment]
        job.send([1] * 5_000, entry_records=1_000)  # from which it learns that a record costs nothing
        job.send([100] * 500)
        job.run_to_the_end()

        assert len(job.values()) == 5_000 + 500 * 100
        assert max(emitted) <= 1_000 + 512 * 100 // 4
