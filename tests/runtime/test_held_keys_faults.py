"""Held keys under faults: whatever fails, is lost, or takes over, each key keeps its order and no record goes twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import Pipeline, hold_key, read, retry, write
from pipeline.deadletters import DeadLetters
from pipeline.errors import StoreUnavailable
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.letters import DeadLetter
from tests.runtime.harness import LocalJob, Moment, SteppingClock
from tests.runtime.tables import ask, look_again, make_rows
from tests.sampling import calls

GOOD, BAD = 1, 0
"""The last part of a value [key, number, part] says whether it goes through."""


def work(value: list[Any]) -> list[Any]:
    if value[2] == BAD:
        raise ValueError(f"{value[0]}{value[1]} is bad")
    return value


def flow(attempts: int = 1) -> Pipeline:
    policy = hold_key() if attempts == 1 else retry(attempts, then=hold_key())
    made = Pipeline("holding")
    keyed = made.source(read.producer(), name="in").key_by(lambda v: v[0], name="by", on_error=policy)
    keyed.map(work, name="work").sink(write.stream("out"), name="out")
    return made


def reference(records: list[Any], decisions: Iterator[Any]) -> tuple[list[Any], list[Any]]:
    """What comes out of one key, and what is left: a letter first, then what is held. None as a decision drops."""
    out = []
    for place, record in enumerate(records):
        value = record
        while value is not None and value[2] == BAD:
            value = next(decisions, "undecided")
            if value == "undecided":
                return out, records[place:]
        out += [] if value is None else [value]
    return out, []


def held_keys(job: LocalJob) -> list[str]:
    return [name.decode() for name in job.client.scan_iter(f"{keys.of_job(job.job)}:held*", 1000)]


def assert_free(job: LocalJob) -> None:
    assert held_keys(job) == []
    assert [(part.held, part.held_bytes) for part in job.jobs.facts(job.job).partitions] == [(0, 0)] * len(job.places)
    assert job.letters() == []
    job.assert_drained()
    job.assert_balanced()


def mend_all(job: LocalJob, run: Callable[[], None]) -> None:
    """Replays all letters with values that go through, and those that come of it, until there are none."""
    letters = DeadLetters(job.job, job.url)
    for _ in range(1_000):
        found = list(letters.list())
        if not found:
            return
        for letter in found:
            letters.edit(letter.id, [*letter.record().values[0][:2], GOOD])
            letters.replay(letter.id)
        run()
    raise AssertionError("there are letters for ever")


# A lost request or reply at any call.


@pytest.mark.sampled
@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_nothing_is_lost_or_doubled_when_any_call_is_lost(redis_url: str, moment: Moment, attempts: int) -> None:
    bad = {2, 4}
    for at in calls():
        with LocalJob(redis_url, flow(attempts), partitions=1, limits=Limits(step_records=3), job=f"j{at}") as job:
            job.worker()
            job.scripts["w0"].break_call(moment, at)
            job.assign(is_told=False)
            job.send([[key, number, int(number not in bad)] for number in range(1, 6) for key in "ab"])
            for _ in range(3):
                try:
                    job.run_through_pauses()
                    mend_all(job, job.run_through_pauses)
                    break
                except StoreUnavailable:
                    continue
            total = len(job.scripts["w0"].calls)

            numbers = {key: [value[1] for value in values] for key, values in job.by_key().items()}
            assert numbers == {key: list(range(1, 6)) for key in "ab"}
            assert_free(job)
            job.client.flushdb()
        if at > total:
            break
    assert at > 12


@pytest.mark.sampled
@pytest.mark.parametrize("moment", ["before", "after"])
def test_rows_of_a_database_are_exact_when_any_call_of_a_release_is_lost(
    redis_url: str, tmp_path: Path, moment: Moment
) -> None:
    """Where rows were stored and their commit was lost, the same records run again for the same position."""
    database_url = f"sqlite:///{tmp_path}/rows.db"
    make_rows(database_url)
    made = Pipeline("rows")
    keyed = made.source(read.producer(), name="in").key_by(lambda v: v[0], name="by", on_error=hold_key())
    keyed.map(work, name="work").map(lambda v: v[1], name="n").sink(write.sql(database_url, "rows"), name="rows")
    for at in calls():
        ask(database_url, "DELETE FROM rows")
        with LocalJob(redis_url, made, partitions=1, job=f"j{at}") as job:
            look_again(job)
            job.assign()
            for first, last in ((1, 2), (3, 3), (4, 4), (5, 5), (6, 20), (21, 21)):  # pieces of unequal length
                job.send([[key, n, int(n not in (2, 8))] for n in range(first, last + 1) for key in "ab"])
                job.run_through_pauses()
            before = len(job.scripts["w0"].calls)
            job.scripts["w0"].break_call(moment, at)
            mend_all(job, job.run_through_pauses)
            total = len(job.scripts["w0"].calls) - before

            rows = sorted(ask(database_url, "SELECT key, value FROM rows"))
            assert rows == [(key, number) for key in "ab" for number in range(1, 22)]
            assert_free(job)
            job.client.flushdb()
        if at > total:
            break
    assert at > 10


# Slow functions, many records, another owner in the middle.


def test_a_release_goes_in_steps_and_a_new_owner_goes_on_in_the_middle(redis_url: str) -> None:
    """By a clock that jumps, each step takes few records, and each slice few steps."""
    with LocalJob(redis_url, flow(), partitions=1, clock=SteppingClock(0.004)) as job:
        job.assign()
        job.send([["a", number, int(number > 1)] for number in range(1, 301)], entry_records=7)
        job.run_until_idle()
        [letter] = job.letters()
        letters = DeadLetters("j", redis_url)
        letters.edit(letter.id, ["a", 1, GOOD])
        letters.replay(letter.id)

        owners, parts = count(1), set()
        while (1, 0) in job.places and job.facts((1, 0)).backlog_bytes:
            job.serve()
            parts.add(len(job.values()))
            job.assign(f"w{next(owners)}", [(1, 0)], is_unclean=False)
        assert len(parts) > 5
        assert [value[1] for value in job.values()] == list(range(1, 301))
        assert_free(job)


def test_held_records_that_another_program_deletes_fail_the_job(redis_url: str) -> None:
    with LocalJob(redis_url, flow(), partitions=1) as job:
        job.assign()
        job.send([["a", 1, BAD], ["a", 2, GOOD]])
        job.run_until_idle()
        job.client.delete(*[name for name in held_keys(job) if "heldrecords" in name])
        DeadLetters("j", redis_url).drop([job.letters()[0].id])
        job.run_until_idle()

        assert "records held of the key 'a' are missing" in job.jobs.read("j").reason


# Whatever happens.

RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([GOOD, GOOD, BAD])), max_size=9)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), RECORDS),
        st.tuples(st.sampled_from(["replay", "edit well", "edit badly", "drop"]), st.integers(0, 9)),
        st.tuples(st.sampled_from(["serve", "take over", "die", "lose a request", "lose a reply"]), st.integers(0, 4)),
    ),
    max_size=40,
)  # fmt: skip


class Story:
    """A job, what happens to it, and what the reference needs to know of that."""

    def __init__(self, job: LocalJob) -> None:
        self.job = job
        self.letters = DeadLetters(job.job, job.url)
        self.sent: dict[str, list[Any]] = {key: [] for key in "abc"}
        self.decided: dict[str, list[Any]] = {key: [] for key in "abc"}
        self._numbers = count(1)
        for _ in range(8):  # so many faults may meet the same look
            look_again(job)
        job.assign()

    def happen(self, action: str, what: Any) -> None:
        match action:
            case "send":
                values = [[key, next(self._numbers), part] for key, part in what]
                for value in values:
                    self.sent[value[0]].append(value)
                self.job.send(values, entry_records=4)
            case "replay" | "edit well" | "edit badly" | "drop":
                found = list(self.letters.list())
                if found:
                    self.decide(action, found[what % len(found)])
            case "serve":
                for _ in range(what):
                    self.job.serve()
            case "take over":
                self.job.assign(f"w{what}", [self.job.places[what % 4]])
            case "die":
                self.job.restart(self.job.owner_of(self.job.places[what % 4]))
            case _:
                owner = self.job.owner_of(self.job.places[what % 4])
                self.job.scripts[owner].break_call("before" if action == "lose a request" else "after", what + 1)

    def decide(self, action: str, letter: DeadLetter) -> None:
        key, number, _part = value = letter.record().values[0]
        if action == "drop":
            self.decided[key].append(None)
            self.letters.drop([letter.id])
            return
        if action != "replay":
            value = [key, number, GOOD if action == "edit well" else BAD]
            self.letters.edit(letter.id, value)
        self.decided[key].append(value)
        self.letters.replay(letter.id)

    def mend(self) -> None:
        """Replays all letters, and those that come of it, with values that go through."""
        while found := list(self.letters.list()):
            for letter in found:
                self.decide("edit well", letter)
            self.job.run_and_sweep()

    def check(self) -> None:
        """Out came what the reference says, and the letters hold what it says is left."""
        found = {letter.record().keys[0]: letter for letter in self.letters.list()}
        out = self.job.by_key()
        for key in "abc":
            passed, left = reference(self.sent[key], iter(self.decided[key]))
            assert out.get(key, []) == passed
            assert (key in found) == bool(left)
            if left:
                assert (found[key].record().values[0][:2], found[key].behind) == (left[0][:2], len(left) - 1)
        self.job.assert_balanced()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions=ACTIONS, step=st.sampled_from([1, 2, 3, 8000]))
def test_each_key_is_as_if_its_records_were_handled_one_by_one(redis_url: str, actions: Any, step: int) -> None:
    limits = Limits(step_records=step, deaths=1_000)
    with connect(redis_url) as client:
        client.flushdb()  # an example that failed has left its job
    with LocalJob(redis_url, flow(), partitions=2, limits=limits) as job:
        story = Story(job)
        for action, what in actions:
            story.happen(action, what)
        for scripts in job.scripts.values():
            scripts.faults.clear()
        job.run_and_sweep()
        story.check()

        story.mend()
        story.check()
        assert_free(job)
