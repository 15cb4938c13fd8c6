"""The state of some keys swapped in a running job: exact, whoever dies where, and nothing else is touched.

What Spark computes stands here as a sum in Python; tests/spark/test_recompute.py has the same with Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline import ErrorPolicy, Pipeline, dead_letter, hold_key, read, write
from pipeline.cli.recomputing import Undertaken
from pipeline.cli.suspending import suspend_job
from pipeline.cli.underway import operation_words
from pipeline.codec import encode_batch
from pipeline.errors import (
    Busy,
    CeleriacError,
    JobStateError,
    LetterError,
    NotQuiet,
    OperationLost,
    StoreUnavailable,
)
from pipeline.facts import JobFacts
from pipeline.lifecycle import JobState
from pipeline.operations import About, Claim, Phase
from pipeline.recomputing.computed import Computed, Given
from pipeline.recomputing.course import Course, Swapped, Wanted
from pipeline.records import MAX_TIME, Batch, Timer
from pipeline.savepoints.export import take_savepoint
from pipeline.savepoints.places import LocalPlace
from pipeline.savepoints.reading import Savepoint
from pipeline.settings import Limits
from pipeline.spark.bulk.letters import Letter
from pipeline.store import keys
from pipeline.store.claims import ClaimStore
from pipeline.store.jobs import JobStore
from pipeline.store.letters import LetterStore
from pipeline.store.scripts import Scripts
from pipeline.store.swaps import SwapStore
from tests.runtime.harness import FlakyScripts, LocalJob, Moment
from tests.runtime.test_moves import Led, wait_until

KEYS = tuple(f"k{number}" for number in range(12))
WRONG = frozenset({"k1", "k5", "k7"})
SLOW = Limits(lease_seconds=600.0)
STAGE = 2

broken: set[str] = set()
"""Keys whose amounts are counted ten times just now."""

failing: set[int] = set()
"""Amounts for which the stage in front fails."""


@pytest.fixture(autouse=True)
def _nothing_is_broken() -> Iterator[None]:
    yield
    broken.clear()
    failing.clear()


def amount(pair: list[Any]) -> int:
    return int(pair[1]) * (10 if pair[0] in broken else 1)


def checked(pair: list[Any]) -> list[Any]:
    if pair[1] in failing:
        raise ValueError(f"{pair[1]} cannot be")
    return pair


def flow(policy: ErrorPolicy | None = None) -> Pipeline:
    """Pairs of key and amount -> `by_key`: the running total to `out`, and the last total of each key to `end`."""
    made = Pipeline("balances")
    pairs = made.source(read.producer(), name="in").key_by(lambda pair: pair[0], name="hop")
    by_key = pairs.map(checked, name="checked").key_by(
        lambda pair: pair[0], name="by_key", on_error=policy or dead_letter()
    )
    total = by_key.map(amount, name="amount").reduce(lambda one, other: one + other, name="total")
    total.sink(write.stream("out"), name="running")
    total.last(name="last").sink(write.stream("end"), name="last_totals")
    return made


@dataclass
class History:
    """What was sent, and what it gives: a `Recompute` for these keys. `between` is called before each answer."""

    wanted: frozenset[str]
    sent: list[list[Any]] = field(default_factory=list)
    between: Callable[[int], None] = lambda _: None
    letters: tuple[Letter, ...] = ()
    held: int = 0
    calls: int = 0

    def __call__(self, given: Given) -> Computed:
        self.calls += 1
        records = given["in"]["a"].records if given["in"] else 0
        totals: dict[str, int] = {}
        for key, number in self.sent[:records]:
            if key in self.wanted and number not in failing:
                totals[key] = totals.get(key, 0) + number
        self.between(self.calls)
        values = {(operator, key): total for key, total in totals.items() for operator in ("total", "last")}
        timers = tuple(Timer("last", key, MAX_TIME) for key in totals)
        return Computed(values, timers, self.letters, self.held, records, 1.0)


class Story:
    """A led job whose function was wrong for some keys, and is mended by now; and commands that swap their state."""

    def __init__(self, job: LocalJob, wanted: frozenset[str] = WRONG) -> None:
        self.job = job
        self.led = Led(job)
        self.history = History(wanted)
        self.swapped: Swapped | None = None
        self.wait_seconds = 0.0
        for number in range(2):
            self.led.join(f"w{number}", node=f"n{number}")
        self.led.turns(lambda: not job.homeless())
        job.token = job.client.hget(keys.leader(job.job), "token").decode()
        broken.update(WRONG)
        self.send(1, 5)
        broken.clear()

    def send(self, first: int, count: int) -> None:
        """Amounts of all keys, and what they come to."""
        pairs = [[key, number] for number in range(first, first + count) for key in KEYS]
        self.job.send(pairs)
        self.history.sent += pairs
        self.job.look()
        self.job.run_until_idle()

    def undertake(self, scripts: Scripts) -> Claim:
        about = About("backfill", "by_key", by="me@here", file="flow.py", keys=len(self.history.wanted))
        return ClaimStore(scripts).undertake(self.job.job, about, Phase.RECOMPUTING)

    def course(self, scripts: Scripts, claim: Claim, tick: Callable[[], None] | None = None) -> Course:
        now = iter(range(100_000))

        def sleep(_: float) -> None:
            self.job.look()
            self.job.run_until_idle()
            if tick is not None:
                tick()

        return Course(
            scripts,
            JobStore(scripts).read(self.job.job),
            claim,
            Wanted(self.job.plan.stage(STAGE), ("total", "last"), self.history.wanted),
            self.history,
            self.wait_seconds,
            lambda phase, done, total: ClaimStore(scripts).renew(claim, phase, done, total),
            clock=lambda: float(next(now)),
            sleep=sleep,
        )

    def swap(self, scripts: Scripts | None = None, tick: Callable[[], None] | None = None) -> Swapped:
        """The whole command."""
        scripts = scripts or Scripts(self.job.client)
        claim = self.undertake(scripts)
        try:
            found = self.course(scripts, claim, tick).run()
        except CeleriacError as error:
            ClaimStore(scripts).end(claim, f"given up: {error}")
            raise
        ClaimStore(scripts).end(claim, "done")
        return found

    def facts(self) -> JobFacts:
        return self.job.jobs.facts(self.job.job)

    def totals(self) -> dict[str, int]:
        return {key: total for (operator, key), total in self.job.state(STAGE).items() if operator == "total"}

    def right(self) -> dict[str, int]:
        found = dict.fromkeys(KEYS, 0)
        for key, number in self.history.sent:
            found[key] += number
        return found

    def assert_right(self) -> None:
        """All state and timers are those of a job that was never wrong, and so is what comes from here on."""
        self.led.turns(lambda: not self.facts().record.held_back and not self.job.homeless())
        assert self.facts().record.paused == {}
        right = self.right()
        state = self.job.state(STAGE)
        assert state == {(operator, key): right[key] for key in KEYS for operator in ("total", "last")}
        before = len(self.job.read("out"))
        self.send(1_000, 2)
        assert sorted(self.job.read("out")[before:]) == sorted(
            [(key, total + 1_000) for key, total in right.items()]
            + [(key, total + 2_001) for key, total in right.items()]
        )
        self.job.run_to_the_end()
        assert sorted(self.job.read("end")) == sorted(self.right().items())


@pytest.fixture
def story(redis_url: str) -> Iterator[Story]:
    with LocalJob(redis_url, flow(), partitions=3, limits=SLOW) as job:
        yield Story(job)


def test_wrong_state_is_swapped_for_that_of_the_history_and_nothing_else_is_touched(story: Story) -> None:
    wrong = story.totals()
    assert {key for key, total in story.right().items() if wrong[key] != total} == WRONG

    found = story.swap()

    assert (found.changed, found.same, found.added, found.removed, found.unknown) == (3, 0, 0, 0, 0)
    assert story.history.calls == 1  # nothing came meanwhile, so nothing was left to compute
    story.assert_right()


def test_what_comes_while_history_is_read_is_counted_once(story: Story) -> None:
    def between(call: int) -> None:
        if call == 1:
            story.send(6, 3)

    story.history.between = between
    story.swap()

    assert story.history.calls == 2
    story.assert_right()


def test_what_comes_while_the_rest_is_computed_is_not_lost_and_the_swap_waits_for_it(story: Story) -> None:
    def between(call: int) -> None:
        if call == 2:  # somebody has let the sources go on
            record = story.facts().record
            story.job.jobs.pause(record, "in", is_paused=False)
        story.send(5 + call, 1) if call < 3 else None

    story.history.between = between
    story.swap()

    assert story.history.calls == 3
    story.assert_right()


def test_while_more_is_left_than_a_moment_takes_the_job_runs_on(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.recomputing.course.SHORT_RECORDS", 12)
    monkeypatch.setattr("pipeline.recomputing.course.SHORT_SECONDS", 0.0)
    paused = []

    def between(call: int) -> None:
        paused.append(bool(story.facts().record.paused))
        if call <= 3:
            story.send(5 + 2 * call, 1 + (call < 3))

    story.history.between = between
    story.swap()

    assert paused == [False, False, False, True]
    story.assert_right()


def test_keys_without_history_lose_their_state_and_timers_and_new_ones_get_some(story: Story) -> None:
    field_ = b"total\0" + b"\xa5ghost"
    story.history.wanted = WRONG | {"ghost", "nobody"}
    story.job.send([["ghost", 7]])
    story.job.look()
    story.job.run_until_idle()
    story.history.sent.append(["nothing", 0])  # the history has another record there
    assert any(field_ in story.job.client.hgetall(key) for key in story.job.client.keys("celeriac:{j}:state:2.*"))

    found = story.swap()

    assert (found.changed, found.removed, found.unknown) == (3, 1, 1)
    story.history.sent.pop()
    assert "ghost" not in story.totals()
    story.history.sent.append(["k1", 0])
    story.job.send([["k1", 0]])
    story.job.look()
    story.job.run_until_idle()
    story.assert_right()


def test_state_that_is_right_already_is_told_so(story: Story) -> None:
    story.swap()
    found = story.swap()

    assert (found.changed, found.same) == (0, 3)
    assert [past.outcome for past in story.facts().record.operations] == ["done", "done"]
    story.assert_right()


def test_an_owner_that_has_not_looked_yet_writes_nothing_of_what_it_remembers(story: Story) -> None:
    claim = story.undertake(Scripts(story.job.client))
    story.course(Scripts(story.job.client), claim).run()
    pairs = [[key, 50] for key in KEYS]
    story.job.send(pairs)
    story.history.sent += pairs

    story.job.run_until_idle()  # by tickets alone: nobody has looked at the table
    story.job.run_and_sweep()

    assert story.totals() == story.right()
    ClaimStore(Scripts(story.job.client)).end(claim, "done")
    story.assert_right()


def test_partitions_without_such_a_key_keep_their_owner_and_its_term(story: Story) -> None:
    story.history.wanted = frozenset({"k1"})
    before = {part.name: part.token for part in story.facts().partitions}

    story.swap()

    after = {part.name: part.token for part in story.facts().partitions}
    assert sum(before[name] != after[name] for name in before) == 1


# Whoever dies, at whatever call.


class Mortal(Scripts):
    """Dies at its nth call, before or after that was applied; nothing behind it is done."""

    def __init__(self, client: Any, point: int, moment: Moment) -> None:
        super().__init__(client)
        self.calls, self.point, self.moment, self.is_dead = 0, point, moment, False

    def run(self, name: str, keys: Any, args: Any) -> list[Any]:
        self.calls += 1
        if self.is_dead or (self.calls == self.point and self.moment == "before"):
            self.is_dead = True
            raise StoreUnavailable("it is dead")
        answer = super().run(name, keys, args)
        if self.calls == self.point:
            self.is_dead = True
            raise StoreUnavailable("it is dead")
        return answer


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_command_killed_at_any_call_leaves_the_old_state_or_the_new_and_the_next_one_completes_it(
    redis_url: str, moment: Moment
) -> None:
    point, is_through, states = 0, False, set()
    while not is_through:
        point += 1
        broken.clear()
        with LocalJob(redis_url, flow(), partitions=2, limits=SLOW, job=f"j{point}") as job, ExitStack() as stack:
            stack.callback(job.jobs.erase, job.job)
            story = Story(job)
            wrong, right = story.totals(), story.right()
            mortal = Mortal(job.client, point, moment)
            try:
                story.swap(mortal)
            except CeleriacError:
                assert mortal.is_dead
            is_through = not mortal.is_dead
            state = story.totals()
            assert state in (wrong, {**wrong, **{key: right[key] for key in WRONG}})
            states.add(state == wrong)

            if job.client.hexists(keys.operation(job.job), "until"):  # its claim has run out
                job.client.hset(keys.operation(job.job), "until", 1)
            story.led.turns(lambda story=story: not story.facts().record.held_back)  # the leader lets the input go on
            assert story.facts().record.paused == {}
            story.send(6, 1)
            story.swap()
            story.assert_right()
    assert states == {True, False}
    assert point > 5


def test_a_leader_lets_nothing_go_while_the_command_is_at_work(story: Story) -> None:
    met = []

    def between(call: int) -> None:
        if call == 2:
            for _ in range(3):
                story.led.lead()
            met.append((story.facts().record.held_back.splitlines()[1:], sorted(story.facts().record.paused)))
        story.send(6, 1) if call == 1 else None

    story.history.between = between
    story.swap()

    assert met == [(["in"], ["in"])]
    story.assert_right()


def test_a_source_that_was_paused_before_stays_paused(story: Story) -> None:
    story.job.jobs.pause(story.facts().record, "in", is_paused=True)

    story.swap()

    assert list(story.facts().record.paused) == ["in"]
    story.job.jobs.pause(story.facts().record, "in", is_paused=False)
    story.assert_right()


def test_a_command_that_was_taken_for_gone_changes_nothing(story: Story) -> None:
    wrong = story.totals()

    def between(_: int) -> None:
        story.job.client.hset(keys.operation("j"), "until", 1)
        story.undertake(Scripts(story.job.client))

    story.history.between = between
    claim = story.undertake(Scripts(story.job.client))
    with pytest.raises(OperationLost):
        story.course(Scripts(story.job.client), claim).run()
    # Also when it learns that only at the swap.
    course = story.course(Scripts(story.job.client), claim)
    course.say = lambda *_: None
    course._store.hold_back = lambda _: None  # type: ignore[method-assign]
    story.history.between = lambda _: None
    with pytest.raises(OperationLost):
        course.run()

    assert story.totals() == wrong


def test_a_command_that_was_taken_for_gone_does_not_let_go_what_the_next_one_holds_back(story: Story) -> None:
    scripts = Scripts(story.job.client)

    def between(call: int) -> None:
        if call == 2:  # it was stopped for long, and another one has come as far
            story.job.client.hset(keys.operation("j"), "until", 1)
            claim = story.undertake(scripts)
            story.course(scripts, claim)._store.hold_back(claim)
        story.send(6, 1) if call == 1 else None

    story.history.between = between
    with pytest.raises(OperationLost):
        story.course(scripts, story.undertake(scripts)).run()

    assert list(story.facts().record.paused) == ["in"]


def test_a_source_that_somebody_pauses_meanwhile_stays_paused(story: Story) -> None:
    told = []

    def between(call: int) -> None:
        if call == 2:
            told.append(story.job.jobs.pause(story.facts().record, "in", is_paused=True))
        story.send(6, 1) if call == 1 else None

    story.history.between = between
    story.swap()

    assert told == [True]
    assert list(story.facts().record.paused) == ["in"]
    story.job.jobs.pause(story.facts().record, "in", is_paused=False)
    story.assert_right()


def test_a_suspend_that_is_refused_leaves_the_input_held_back(story: Story, tmp_path: Path) -> None:
    met = []

    def between(call: int) -> None:
        if call == 2:
            with pytest.raises(Busy, match="backfill of 3 keys of by_key"):
                suspend_job(Scripts(story.job.client), story.facts().record, LocalPlace(tmp_path), "s", 0.0)
            met.append(list(story.facts().record.paused))
        story.send(6, 1) if call == 1 else None

    story.history.between = between
    story.swap()

    assert met == [["in"]]
    story.assert_right()


def test_records_that_redis_has_lost_since_they_were_computed_are_not_in_the_state(story: Story) -> None:
    """Their source gives them again."""
    wrong, client = story.totals(), story.job.client
    [(number, partition)] = [
        value.split() for name, value in client.hgetall(keys.senders("j")).items() if name.startswith(b"n:")
    ]
    log = keys.log("j", 0, int(partition))
    story.history.between = lambda call: client.hincrby(log, number.decode(), -len(KEYS)) if call == 1 else None
    with pytest.raises(JobStateError, match="job 'j' counts 12 records less of the source in than when") as caught:
        story.swap()

    client.hincrby(log, number.decode(), len(KEYS))
    assert "nothing is changed" in caught.value.hint
    assert story.totals() == wrong
    assert story.facts().record.paused == {}


def test_a_loss_that_was_accepted_since_ends_the_backfill_too(story: Story) -> None:
    def accept(call: int) -> None:
        if call == 1:
            losses = story.job.jobs.losses("j")
            losses.report(story.facts().record.run, ["12 records of in"])
            losses.accept(story.facts().record)

    story.history.between = accept
    wrong = story.totals()
    with pytest.raises(JobStateError, match="records less of the source in than when"):
        story.swap()
    assert story.totals() == wrong


# Savepoints.


def test_a_savepoint_holds_the_state_before_the_swap_or_behind_it_and_none_is_cut_between(
    story: Story, tmp_path: Path
) -> None:
    scripts, place = Scripts(story.job.client), LocalPlace(tmp_path)
    refused = []

    def take(name: str) -> dict[str, int]:
        take_savepoint(scripts, story.facts().record, place, name)
        return totals_in(place, name)

    def between(_: int) -> None:
        with pytest.raises(Busy, match="backfill of 3 keys of by_key") as error:
            take("during")
        refused.append(str(error.value))

    wrong = take("before")
    story.history.between = between
    story.swap()

    assert len(refused) == 1
    assert wrong != story.right() == take("after") == story.totals()
    assert totals_in(place, "before") == wrong
    story.assert_right()


def totals_in(place: LocalPlace, name: str) -> dict[str, int]:
    from pipeline.codec import decode_value

    rows = Savepoint(place, name).states((0, 255))
    return {row.key: decode_value(row.data) for row in rows if row.operator == "total"}


def test_no_backfill_begins_while_a_savepoint_is_written_so_none_of_its_old_values_is_missing(
    story: Story, tmp_path: Path
) -> None:
    scripts, place, tried = Scripts(story.job.client), LocalPlace(tmp_path), []

    def between() -> None:
        if not tried:
            with pytest.raises(Busy, match="the savepoint s is being written") as error:
                story.swap()
            tried.append(error)

    wrong = story.totals()
    take_savepoint(scripts, story.facts().record, place, "s", between=between)

    assert totals_in(place, "s") == wrong == story.totals()
    claim = story.undertake(scripts)
    story.job.client.hset(keys.job("j"), "saving", 1)  # which no script of ours does beside an operation
    with pytest.raises(Busy, match="was changed just now"):
        story.course(scripts, claim).run()
    assert story.totals() == wrong


# What is refused.


def test_what_is_not_drained_in_time_changes_nothing_and_the_input_flows(story: Story) -> None:
    record = story.facts().record
    story.job.jobs.pause_stage(record, "hop", is_paused=True)
    story.job.look()
    story.job.send([["k0", 6]])
    story.history.sent.append(["k0", 6])
    wrong = story.totals()

    with pytest.raises(NotQuiet, match="not drained after 0 s"):
        story.swap()

    assert story.totals() == wrong
    assert (story.facts().record.paused, story.facts().record.held_back) == ({}, "")
    story.job.jobs.pause_stage(record, "hop", is_paused=False)
    story.job.look()
    story.job.run_and_sweep()
    story.swap()
    story.assert_right()


def test_what_is_in_flight_is_waited_for_without_reading_all_senders_at_each_look(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, stands = [], []
    is_in_flight, stand = SwapStore.is_in_flight, SwapStore.stand
    monkeypatch.setattr(SwapStore, "is_in_flight", lambda store: (looks.append(is_in_flight(store)), looks[-1])[1])
    monkeypatch.setattr(SwapStore, "stand", lambda store: (stands.append(stand(store)), stands[-1])[1])
    story.wait_seconds = 1_000.0
    pairs = [[key, 6] for key in KEYS]
    story.job.send(pairs)
    story.history.sent += pairs

    story.swap()

    assert (looks[0], looks[-1], sum(each.is_quiet for each in stands)) == (True, False, 1)
    assert len(stands) == 3  # where history begins, what has come meanwhile, and where the swap is
    story.assert_right()


def test_a_key_that_a_dead_letter_holds_is_named(redis_url: str) -> None:
    with LocalJob(redis_url, flow(hold_key()), partitions=2, limits=SLOW) as job:
        story = Story(job)
        job.send([["k5", "none"]])
        job.look()
        job.run_until_idle()

        with pytest.raises(LetterError, match="dead letters hold 1 of the keys: k5") as error:
            story.swap()

        assert "celeriac dead-letters list j" in error.value.hint
        assert story.facts().record.paused == {}


def test_dead_letters_that_the_history_counts_would_be_counted_twice_and_are_named(story: Story) -> None:
    failing.add(77)
    story.job.send([["k1", 77], ["k0", 77]])
    story.job.look()
    story.job.run_until_idle()
    story.history.sent += [["k1", 77], ["k0", 77]]
    first, second = story.job.letters()

    with pytest.raises(
        LetterError, match=f"2 dead letters would be counted twice by a replay: {first.id}, {second.id}"
    ):
        story.swap()

    # Where the recomputation has given them up as well, both are as they were.
    story.history.letters = tuple(Letter(1, 0, "checked", "E", "", letter.payload) for letter in story.job.letters())
    found = story.swap()
    assert found.failed == ()
    failing.clear()
    for letter in LetterStore(Scripts(story.job.client), story.facts().record).read():
        LetterStore(Scripts(story.job.client), story.facts().record).replay(letter)
    story.job.run_and_sweep()
    story.assert_right()


def test_dead_letters_of_other_keys_of_the_stage_hinder_nobody(story: Story) -> None:
    story.job.send([["k0", "none"], ["k1", "none"]])
    story.job.look()
    story.job.run_until_idle()
    other, own = story.job.letters()
    story.history.sent += [["k0", 0], ["k1", 0]]

    with pytest.raises(LetterError, match=f"1 dead letter would .*: {own.id}$"):
        story.swap()
    LetterStore(Scripts(story.job.client), story.facts().record).drop([own.id])
    story.swap()

    assert [letter.id for letter in story.job.letters()] == [other.id]
    story.assert_right()


def test_records_that_fail_only_in_the_history_are_told(story: Story) -> None:
    payload = encode_batch(Batch([["k1", 3]]))
    story.history.letters = (Letter(1, 0, "checked", "ValueError: 3", "", payload),)

    assert [letter.error for letter in story.swap().failed] == ["ValueError: 3"]


@pytest.mark.parametrize("kind", ["letter", "held"])
def test_history_that_holds_keys_has_no_place_for_what_is_behind(story: Story, kind: str) -> None:
    if kind == "held":
        story.history.held = 1
    else:
        story.history.letters = (Letter(2, 0, "amount", "E", "", encode_batch(Batch([1], ["k1"])), holds=True),)
    wrong = story.totals()

    with pytest.raises(LetterError, match="hold their keys"):
        story.swap()

    assert story.totals() == wrong


def test_a_stage_whose_input_has_ended_has_no_state_to_swap(story: Story) -> None:
    story.job.run_to_the_end()

    with pytest.raises(JobStateError, match="the input of stage by_key of job 'j' has ended"):
        story.swap()


def test_a_job_that_stops_meanwhile_keeps_its_state(story: Story) -> None:
    wrong = story.totals()
    story.history.between = lambda _: story.job.jobs.transition("j", JobState.CANCELLED)

    with pytest.raises(JobStateError, match="is cancelled"):
        story.swap()

    assert story.totals() == wrong


def test_files_that_the_job_has_forgotten_are_told(story: Story) -> None:
    story.job.client.hset(keys.log("j", 0, 0), "gone", 12)
    story.job.is_tampered = True

    with pytest.raises(JobStateError, match="has forgotten where 12 records of the source in came from"):
        story.swap()


def test_while_one_is_under_way_others_are_busy(story: Story) -> None:
    story.undertake(Scripts(story.job.client))

    facts = story.facts()
    assert facts.operation is not None
    words = "backfill of 3 keys of by_key, since 0 s, phase recomputing, by me@here: 0 of 0 records of history"
    assert operation_words(facts, facts.operation) == words
    with pytest.raises(Busy, match="busy: backfill of 3 keys of by_key, since 0 s, phase recomputing"):
        story.undertake(Scripts(story.job.client))


def test_a_partition_that_has_another_owner_by_then_is_looked_at_again(story: Story) -> None:
    scripts = FlakyScripts(story.job.client)
    moved = []
    run = scripts.run

    def swap_late(name: str, names: Any, args: Any) -> list[Any]:
        if name == "swap" and not moved:
            moved.append(name)
            story.led.kill("w0")
            story.led.turns(lambda: story.led.owned("w0") == 0)
        return run(name, names, args)

    scripts.run = swap_late  # type: ignore[method-assign]
    story.swap(scripts)

    assert moved == ["swap"]
    story.assert_right()


@pytest.mark.parametrize("bound", ["MOST_VALUES", "MOST_BYTES"])
def test_more_than_one_script_should_swap_is_refused_and_changes_nothing(
    story: Story, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(f"pipeline.store.swaps.{bound}", 20)
    wrong = story.totals()

    with pytest.raises(JobStateError, match="the state of 3 keys is more than is swapped at once"):
        story.swap()

    assert (story.totals(), story.facts().record.paused) == (wrong, {})


def test_a_command_keeps_its_claim_while_it_computes_and_hears_when_it_is_lost(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.cli.recomputing.RENEW_SECONDS", 0.01)
    about, operation = About("backfill", "by_key", by="me@here", file="flow.py", keys=3), keys.operation("j")
    with Undertaken(story.job.url, "j", about) as undertaken:
        undertaken.say(Phase.SWAPPING, 3, 7)
        story.job.client.hset(operation, mapping={"until": 1, "phase": "recomputing", "done": 0})
        wait_until(lambda: story.job.client.hget(operation, "until") != b"1")
        facts = story.facts().operation
        assert facts is not None
        assert (facts.phase, facts.done, facts.total) == (Phase.SWAPPING, 3, 7)

        story.job.client.hset(operation, "token", "another")
        wait_until(lambda: undertaken.is_lost)
        with pytest.raises(OperationLost):
            undertaken.say(Phase.SWAPPING, 4, 7)

    assert story.job.client.hget(operation, "token") == b"another"
