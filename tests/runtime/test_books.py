"""The books balance at every instant of any job, and what spoils them is told by stage and partition."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leader.duties.books import COUNTS_A_SECOND, LOOK_MS, SLOWEST_LOOK_MS, BookKeeping, look_after_ms
from pipeline import Pipeline, read, write
from pipeline.aggregates import total
from pipeline.books import findings
from pipeline.cli.main import run_command
from pipeline.deadletters import DeadLetters
from pipeline.errors import CeleriacError, StaleTerm
from pipeline.facts import Alarm
from pipeline.messages import Data, encode_header
from pipeline.policies import skip
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.books import MOST_ALARMS, BookStore
from pipeline.store.scripts import Scripts
from tests.runtime.harness import LocalJob

TIGHT = Limits(inbox_records=40, step_records=7, step_outputs=9)


def refuse(value: int) -> int:
    if value % 11 == 0:
        raise ValueError(f"cannot work on {value}")
    return value


def take(_rows: list[dict[str, Any]]) -> None:
    """Whoever is called."""


def flow(folder: Path) -> Pipeline:
    """Filters, a branch, a union, more and fewer records, skips, dead letters, timers, two hops, all kinds of sinks."""
    made = Pipeline("books")
    first = made.source(read.producer(), name="in")
    odd, even = first.branch(lambda v: v % 2, name="parity")
    some = odd.flat_map(lambda v: [v] * (v % 4), name="some").union(even, name="both")
    hop = some.key_by(lambda v: v % 7, name="by_seven", on_error=skip()).map(refuse, name="refuse")
    again = hop.map(lambda v: v + 1, name="next").key_by(lambda v: v % 3, name="by_three").map(refuse, name="again")
    again.aggregate(total(), name="sum").sink(write.stream("sums"), name="sums")
    again.last(name="newest").sink(write.jsonl(str(folder / "newest")), name="newest_rows")
    hop.filter(lambda v: v > 5, name="large").sink(write.call(take), name="calls")
    return made


class Chance:
    """Does to a job what a seed says, and looks at its books after each script that it or a worker has called."""

    def __init__(self, job: LocalJob, seed: int) -> None:
        self.job, self.dice = job, random.Random(seed)
        self.looks = 0
        self._letters = DeadLetters(job.job, job.url)

    def look(self) -> None:
        self.looks += 1
        assert self.job.findings() == []

    def send(self) -> None:
        lane = self.job.lane(self.dice.choice("abc"))
        values = [self.dice.randrange(100) for _ in range(self.dice.randrange(1, 12))]
        known = [self.dice.choice([None, f"id-{self.dice.randrange(20)}"]) for _ in values]
        lane.append(lane.taken + 1, Batch(values), ids=known if self.dice.random() < 0.5 else None)

    def send_again(self) -> None:
        lane = self.job.feed().lane(self.dice.choice("abc"))
        lane.taken = 0
        lane.append(1, Batch(list(range(self.job.lane(self.dice.choice("abc")).taken))[:30] or [0]))

    def visit(self) -> None:
        lane = self.job.feed().lane(f"visitor-{self.dice.random()}", exclusive=True)
        lane.append(1, Batch([self.dice.randrange(100)]))
        assert lane.leave()

    def serve(self) -> None:
        for place in self.dice.sample(self.job.places, len(self.job.places)):
            name = self.job.owner_of(place)
            if name is not None and self.job.pop_ticket(place):
                self.job.slice(name, place)

    def lose(self) -> None:
        flaky = self.job.scripts[self.dice.choice(list(self.job.workers))]
        flaky.break_call(self.dice.choice(["before", "after"]), self.dice.randrange(1, 4))
        self.serve()

    def restart(self) -> None:
        name = self.dice.choice(list(self.job.workers))
        self.job.restart(name)
        watch(self.job.scripts[name], self.look)

    def put_back(self) -> None:
        for letter in list(self._letters.list())[:2]:
            self._letters.edit(letter.id, self.dice.randrange(100))
            self._letters.replay(letter.id)

    def drop(self) -> None:
        self._letters.drop([letter.id for letter in list(self._letters.list())[:2]])

    def sweep(self) -> None:
        self.job.sweep()
        self.serve()


ACTIONS = ["send", "send", "send_again", "visit", "serve", "serve", "lose", "restart", "put_back", "drop", "sweep"]


@given(st.lists(st.sampled_from(ACTIONS), min_size=5, max_size=40), st.integers(0, 10**6))
def test_the_books_of_any_job_balance_after_each_of_its_scripts(
    redis_server: Any, actions: Sequence[str], seed: int
) -> None:
    with (
        TemporaryDirectory() as folder,
        LocalJob(redis_server.url, flow(Path(folder)), limits=TIGHT, job=f"b{uuid4().hex}") as job,
    ):
        job.assign("w0", job.places[::2])
        job.assign("w1", job.places[1::2])
        chance = Chance(job, seed)
        for scripts in job.scripts.values():
            watch(scripts, chance.look)
        for action in actions:
            # A call that was lost, a full inbox, a letter that cannot be put back: not what is tested here.
            with suppress(CeleriacError):
                getattr(chance, action)()
            chance.look()

        job.end_input()
        for _ in range(3):
            job.run_through_pauses()

        job.assert_done()
        assert chance.looks > len(actions)
        job.jobs.erase(job.job)


def watch(scripts: Scripts, look: Callable[[], None]) -> None:
    real = scripts.run

    def run(name: str, names: Sequence[str], args: Sequence[Any]) -> list[Any]:
        answer = real(name, names, args)
        look()
        return answer

    scripts.run = run  # type: ignore[method-assign]


@pytest.fixture
def job(redis_url: str, tmp_path: Path) -> Iterator[LocalJob]:
    """A job of which some records have come to their end, and some wait in each stage."""
    with LocalJob(redis_url, flow(tmp_path), limits=Limits(step_records=7)) as made:
        made.assign()
        made.send(range(60), split="a")
        made.send(range(60, 120), split="b")
        made.run_until_idle()
        made.send(range(120, 150), split="a", entry_records=3)
        made.assert_balanced()
        made.is_tampered = True
        yield made


def an_entry_by_hand(job: LocalJob) -> str:
    header = encode_header(Data("1", 1, 2, None, 1))
    job.append_entry((1, 1), header, b"x", 2)
    job.client.hincrby(keys.log("j", 1, 1), "gone", -2)
    return "stage 'by_seven' partition 1 has 2 records more than its senders sent"


def a_number_bumped(job: LocalJob) -> str:
    job.client.hincrby(keys.log("j", 1, 0), "0.1", 1)
    return "stage 'by_seven' partition 0 has 1 record more from stage 'in' partition 1 than that sent"


def an_entry_that_seems_to_be_sent(job: LocalJob) -> str:
    """The inbox and its log agree; only its sender knows better."""
    job.append_entry((2, 1), encode_header(Data("1.0", 1, 3, None, 1)), b"x", 3)
    job.client.hincrby(keys.log("j", 2, 1), "gone", -3)
    job.client.hincrby(keys.log("j", 2, 1), "1.0", 3)
    return "stage 'by_three' partition 1 has 3 records more from stage 'by_seven' partition 0 than that sent"


def a_record_not_taken(job: LocalJob) -> str:
    job.client.hincrby(keys.meta("j", 2, 0), "taken", -1)
    return "stage 'by_three' partition 0 has taken 1 record fewer than it has passed"


def a_position_set_back(job: LocalJob) -> str:
    """An entry comes again, and its position with it: its records would be applied twice."""
    position = job.facts((2, 0)).position
    first = int(position.entry.partition("-")[0])
    stream = keys.inbox("j", 2, 0)
    job.client.delete(stream)
    header = encode_header(Data("1.0", 1, 2, None, 1))
    job.client.xadd(stream, {"h": header, "d": b"x"}, f"{first - 2}-0")
    job.client.hset(keys.meta("j", 2, 0), "pos", f"{first - 2}-0")
    return "stage 'by_three' partition 0 has taken 2 records more than it has passed"


def a_position_set_forward(job: LocalJob) -> str:
    place = next(place for place in job.places if job.facts(place).backlog > 3)
    first = int(job.facts(place).position.entry.partition("-")[0])
    job.client.xtrim(keys.inbox("j", *place), minid=f"{first + 3}-0", approximate=False)
    job.client.hset(keys.meta("j", *place), "pos", f"{first + 3}-0")
    return f"stage 'in' partition {place[1]} has taken 3 records fewer than it has passed"


def an_entry_deleted(job: LocalJob) -> str:
    place = next(place for place in job.places if job.facts(place).backlog > 3)
    entry = job.facts(place).position.entry
    backlog = job.facts(place).backlog
    job.client.xdel(keys.inbox("j", *place), entry)
    return f"stage 'in' partition {place[1]} misses the entry at its position, {backlog} records before its end"


def an_output_not_counted(job: LocalJob) -> str:
    job.client.hincrby(keys.meta("j", 1, 1), "emitted", -2)
    return "stage 'by_seven' partition 1 has emitted 2 records fewer than it sent"


def a_call_lost(job: LocalJob) -> str:
    job.client.hincrby(keys.log("j", 1, 1), "n:calls", -1)
    return "sink 'calls' has of stage 'by_seven' partition 1 1 record fewer than that gave it"


def a_result_doubled(job: LocalJob) -> str:
    job.client.hincrby(keys.out_meta("j", "sums"), "head", 1)
    return "output 'sums' has 1 record more than its senders sent"


def a_result_said_to_be_of_another(job: LocalJob) -> str:
    job.client.hincrby(keys.out_log("j", "sums"), "2.1", -1)
    return "output 'sums' has of stage 'by_three' partition 1 1 record fewer than that gave it"


def a_letter_lost(job: LocalJob) -> str:
    (first, *_) = job.letters()
    job.client.xdel(keys.dead("j"), first.id)
    return "of the dead letters 1 fewer are there, replayed or dropped than were written"


SPOILERS = [
    an_entry_by_hand, a_number_bumped, an_entry_that_seems_to_be_sent, a_record_not_taken, a_position_set_back,
    a_position_set_forward, an_entry_deleted, an_output_not_counted, a_call_lost, a_result_doubled,
    a_result_said_to_be_of_another, a_letter_lost,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
def test_what_spoils_the_books_is_told_with_its_stage_and_partition(
    job: LocalJob, spoil: Callable[[LocalJob], str], caplog: pytest.LogCaptureFixture
) -> None:
    said = spoil(job)
    duty = a_duty(job)

    with caplog.at_level(logging.ERROR):
        duty.run_once(job.jobs.facts("j"), job.token)

    assert said in job.findings()
    assert said in {alarm.text for alarm in job.jobs.facts("j").alarms}
    assert f"the books do not balance: job=j {said}" in caplog.messages


def a_duty(job: LocalJob) -> BookKeeping:
    return BookKeeping(BookStore(Scripts(job.client)))


def test_a_sender_that_goes_on_behind_its_end_is_told(job: LocalJob) -> None:
    lane = job.lane("a")
    lane.finish(lane.taken)
    assert job.findings() == []

    job.client.hincrby(keys.log("j", 0, 1), "1", 1)

    assert "stage 'in' partition 1 has 1 record more of sender 1 than that ended with" in job.findings()


def test_a_job_that_ended_with_records_in_an_inbox_is_told(job: LocalJob) -> None:
    place = next(place for place in job.places if job.facts(place).backlog > 3)
    backlog = job.facts(place).backlog
    assert job.findings() == []

    job.client.hset(keys.job("j"), "state", "finished")

    assert f"stage 'in' partition {place[1]} ended with {backlog} records that it has not taken" in job.findings()


def test_an_alarm_is_told_once_and_kept_whoever_leads(job: LocalJob, caplog: pytest.LogCaptureFixture) -> None:
    a_record_not_taken(job)
    first, second = a_duty(job), a_duty(job)

    for duty in (first, first, second):
        facts = job.jobs.facts("j")
        duty._look_at_ms = 0
        duty.run_once(facts, job.token)

    assert len([text for text in caplog.messages if "do not balance" in text]) == 1
    (alarm,) = job.jobs.facts("j").alarms
    assert (alarm.stage, alarm.partition) == ("by_three", 0)
    assert 0 < alarm.at_ms <= job.jobs.facts("j").now_ms


def test_the_books_are_looked_at_once_a_second_and_large_ones_less_often(job: LocalJob) -> None:
    duty, facts = a_duty(job), job.jobs.facts("j")
    duty.run_once(facts, job.token)
    a_record_not_taken(job)

    assert duty.run_once(facts, job.token) == {}
    assert look_after_ms(0) == LOOK_MS
    assert look_after_ms(5 * COUNTS_A_SECOND) == 5_000
    assert look_after_ms(10**9) == SLOWEST_LOOK_MS


def test_what_is_kept_of_alarms_is_bounded(job: LocalJob) -> None:
    store = BookStore(Scripts(job.client))
    alarms = [Alarm(f"n{number}", "in", 0, "wrong", 1) for number in range(2 * MOST_ALARMS)]

    store.raise_alarms("j", job.token, alarms)
    assert store.raise_alarms("j", job.token, alarms[MOST_ALARMS:]) == []

    assert [alarm.name for alarm in job.jobs.facts("j").alarms] == sorted(f"n{number}" for number in range(MOST_ALARMS))


def test_a_leader_that_leads_no_more_raises_no_alarm(job: LocalJob) -> None:
    a_record_not_taken(job)

    with pytest.raises(StaleTerm):
        a_duty(job).run_once(job.jobs.facts("j"), "0:other")

    assert job.jobs.facts("j").alarms == ()


def test_books_are_read_and_alarms_raised_on_a_redis_without_memory(job: LocalJob) -> None:
    said = a_record_not_taken(job)
    job.client.config_set("maxmemory", 1)
    try:
        a_duty(job).run_once(job.jobs.facts("j"), job.token)
    finally:
        job.client.config_set("maxmemory", 0)

    assert [alarm.text for alarm in job.jobs.facts("j").alarms] == [said]


def test_status_says_that_the_books_balance_or_what_is_wrong(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["status", "j", "--redis", job.url]) == 0
    assert "the books balance: 150 in, " in capsys.readouterr().out

    said = a_number_bumped(job)
    assert run_command(["status", "j", "--redis", job.url]) == 0
    assert f"BOOKS DO NOT BALANCE: {said}" in capsys.readouterr().out
    assert run_command(["status", "j", "--redis", job.url, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["books"]
    assert not shown["balance"]
    assert {"stage": "by_seven", "partition": 0, "text": said, "found_ms": None} in shown["alarms"]


def test_the_line_of_the_books_counts_what_came_and_what_went(redis_url: str, tmp_path: Path) -> None:
    with LocalJob(redis_url, flow(tmp_path)) as job:
        job.assign()
        lane = job.lane("a")
        lane.append(1, Batch([1, 2, 3, 4]), ids=["one", "two", "one", None])
        job.run_to_the_end()

        books = BookStore(Scripts(job.client)).read(job.jobs.read("j"))
        assert findings(books) == []
        pages = [page for page in books.pages if page.left_out]
        assert [(page.stage, page.left_out) for page in pages] == [(0, 1)]
