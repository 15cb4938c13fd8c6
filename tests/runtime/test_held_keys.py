"""hold_key: later records of a key wait behind its dead letter, and go on in order, once, when it goes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from leader.duties.lifecycle import next_state
from pipeline import ErrorPolicy, Pipeline, hold_key, read, retry, write
from pipeline.cli.main import run_command
from pipeline.client import Client
from pipeline.deadletters import DeadLetters
from pipeline.errors import JobStateError, LetterError, StoreUnavailable
from pipeline.kernel.contract import Emitted, KeyedOperator, TimerChanges
from pipeline.keying import group_of
from pipeline.lifecycle import JobState
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.jobs import JobStore
from pipeline.store.letters import LetterStore
from stages.worker import Place
from tests.runtime.harness import FlakyScripts, LocalJob, Moment

broken: set[str] = set()
"""Values for which the operator fails just now."""

calls: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _nothing_is_broken() -> None:
    broken.clear()
    calls.clear()


def work(value: Any) -> Any:
    calls[value] += 1
    if value in broken:
        raise ValueError(f"cannot work on {value}")
    return value


def first_letter(value: str) -> str:
    return value[0]


def flow(policy: ErrorPolicy | None = None) -> Pipeline:
    """Values are a letter, which is the key, and a number."""
    made = Pipeline("holding")
    keyed = made.source(read.producer(), name="in").key_by(first_letter, name="by", on_error=policy or hold_key())
    keyed.map(work, name="work").sink(write.stream("out"), name="out")
    return made


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    """b2 is a dead letter; b3 and b4 are behind it."""
    broken.add("b2")
    with LocalJob(redis_url, flow(), partitions=2) as made:
        made.assign()
        made.send(["a1", "b1", "b2", "a2", "b3", "c1", "b4"])
        made.run_until_idle()
        yield made


def letters_of(job: LocalJob) -> DeadLetters:
    return DeadLetters(job.job, job.url)


def the_letter(job: LocalJob) -> str:
    [letter] = letters_of(job).list()
    return letter.id


def held(job: LocalJob) -> int:
    """Records held, as the job is told; the same as is stored."""
    told = job.jobs.facts(job.job).held
    assert told == sum(letter.behind for letter in letters_of(job).list())
    return told


def hold_keys(job: LocalJob) -> list[str]:
    """The keys in Redis that hold something."""
    return [name.decode() for name in job.client.scan_iter(f"{keys.of_job(job.job)}:held*", 1000)]


def assert_free(job: LocalJob) -> None:
    """Nothing is held, and nothing is left of what was."""
    assert hold_keys(job) == []
    assert [(part.held, part.held_bytes) for part in job.jobs.facts(job.job).partitions] == [(0, 0)] * len(job.places)
    job.assert_drained()
    job.assert_balanced()


def send_as_far_as_the_inbox(job: LocalJob, values: list[str]) -> Place:
    """The entry stage has passed them on, and nobody has looked at them yet; where they are."""
    before = {place: job.facts(place).backlog for place in job.places}
    job.send(values)
    for place in job.places:
        if place[0] == 0 and job.pop_ticket(place):
            job.slice("w0", place)
    [place] = [place for place in job.places if job.facts(place).backlog > before[place]]
    return place


def test_later_records_of_the_key_wait_and_other_keys_go_on(job: LocalJob) -> None:
    assert job.by_key() == {"a": ["a1", "a2"], "b": ["b1"], "c": ["c1"]}
    [letter] = letters_of(job).list()
    assert (letter.record().values, letter.holds, letter.behind) == (["b2"], True, 2)
    assert held(job) == 2
    assert (calls["b3"], calls["b4"]) == (0, 0)

    job.send(["b5", "a3"])
    job.run_until_idle()

    assert job.by_key()["b"] == ["b1"]
    assert held(job) == 3
    assert calls["b5"] == 0
    job.assert_drained()
    job.assert_balanced()


def test_a_replay_lets_the_record_pass_and_then_all_behind_it(job: LocalJob) -> None:
    broken.clear()
    letters_of(job).replay(the_letter(job))
    job.send(["b5", "a3"])
    job.run_until_idle()

    assert job.by_key() == {"a": ["a1", "a2", "a3"], "b": ["b1", "b2", "b3", "b4", "b5"], "c": ["c1"]}
    assert list(letters_of(job).list()) == []
    assert_free(job)

    job.send(["b6"])
    job.run_until_idle()
    assert job.values()[-1] == "b6"


def test_records_that_came_before_the_replay_are_held_in_front_of_its_end(job: LocalJob) -> None:
    """They stand in the inbox before the release, whose numbers know nothing of them."""
    broken.clear()
    send_as_far_as_the_inbox(job, ["b5"])
    letters_of(job).replay(the_letter(job))
    job.run_until_idle()

    assert job.by_key()["b"] == ["b1", "b2", "b3", "b4", "b5"]
    assert_free(job)


def test_records_with_other_columns_go_on_with_their_own(redis_url: str) -> None:
    broken.add("b1")
    with LocalJob(redis_url, flow(), partitions=1) as job:
        job.assign()
        job.lane().append(1, Batch(["b1", "b2"], times=[1, 2]))
        job.lane().append(3, Batch(["b3"]))
        job.lane().append(4, Batch(["b4"], ids=["four"]))
        job.run_until_idle()
        assert held(job) == 3
        broken.clear()
        letters_of(job).replay(the_letter(job))
        job.run_until_idle()

        assert job.values() == ["b1", "b2", "b3", "b4"]
        assert_free(job)


def test_an_edited_value_passes_in_the_place_of_the_first(job: LocalJob) -> None:
    letters = letters_of(job)
    letters.edit(the_letter(job), "b2-mended")
    letters.replay(the_letter(job))
    job.run_until_idle()

    assert job.by_key()["b"] == ["b1", "b2-mended", "b3", "b4"]
    assert not job.client.exists(keys.dead_edits("j"))
    assert_free(job)


def test_a_letter_that_was_edited_is_not_lost_when_its_replay_fails_again(job: LocalJob) -> None:
    letters = letters_of(job)
    broken.add("b2-worse")
    first = the_letter(job)
    letters.edit(first, "b2-worse")
    letters.replay(first)
    job.run_until_idle()

    [letter] = letters.list()
    assert (letter.record().values, letter.replay_of, letter.behind) == (["b2-worse"], first, 2)
    assert job.by_key()["b"] == ["b1"]
    assert held(job) == 2


def test_one_of_those_behind_fails_and_holds_the_rest(job: LocalJob) -> None:
    broken.clear()
    broken.add("b3")
    first = the_letter(job)
    letters_of(job).replay(first)
    job.run_until_idle()

    [letter] = letters_of(job).list()
    assert (letter.record().values, letter.replay_of, letter.behind) == (["b3"], first, 1)
    assert job.by_key()["b"] == ["b1", "b2"]
    assert held(job) == 1
    job.assert_balanced()

    broken.clear()
    letters_of(job).replay(letter.id)
    job.run_until_idle()
    assert job.by_key()["b"] == ["b1", "b2", "b3", "b4"]
    assert_free(job)


def test_the_last_of_those_behind_fails_and_holds_nothing_yet(job: LocalJob) -> None:
    broken.clear()
    broken.add("b4")
    letters_of(job).replay(the_letter(job))
    job.run_until_idle()

    assert held(job) == 0
    job.send(["b5"])
    job.run_until_idle()
    assert held(job) == 1
    assert job.by_key()["b"] == ["b1", "b2", "b3"]


def test_a_drop_lets_those_behind_go_on(job: LocalJob) -> None:
    assert letters_of(job).drop([the_letter(job), "1-1", "nonsense"]) == 1
    job.run_until_idle()

    assert job.by_key()["b"] == ["b1", "b3", "b4"]
    assert list(letters_of(job).list()) == []
    assert_free(job)


def test_a_drop_of_a_letter_with_nothing_behind_it_frees_the_key(redis_url: str) -> None:
    broken.add("b1")
    with LocalJob(redis_url, flow(), partitions=1) as job:
        job.assign()
        job.send(["b1"])
        job.run_until_idle()
        letters_of(job).drop([the_letter(job)])
        job.send(["b2"])
        job.run_until_idle()

        assert job.values() == ["b2"]
        assert_free(job)


def test_each_letter_is_replayed_or_dropped_once(job: LocalJob) -> None:
    id_ = the_letter(job)
    letters_of(job).replay(id_)

    with pytest.raises(LetterError, match="no dead letter"):
        letters_of(job).replay(id_)
    assert letters_of(job).drop([id_]) == 0


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_reply_of_a_replay_doubles_nothing(job: LocalJob, moment: Moment) -> None:
    broken.clear()
    scripts = FlakyScripts(job.client)
    store = LetterStore(scripts, JobStore(scripts).read("j"))
    letter = store.get(the_letter(job))
    scripts.break_call(moment)
    with pytest.raises(StoreUnavailable):
        store.replay(letter)
    if moment == "before":
        store.replay(letter)
    else:
        with pytest.raises(LetterError):
            store.replay(letter)

    job.run_until_idle()
    assert job.by_key()["b"] == ["b1", "b2", "b3", "b4"]
    assert_free(job)


def test_keys_that_look_alike_are_held_apart(redis_url: str) -> None:
    made = Pipeline("alike")
    keyed = made.source(read.producer(), name="in").key_by(lambda v: v[0], name="by", on_error=hold_key())
    keyed.map(lambda v: work(v[1]), name="work").sink(write.stream("out"), name="out")
    broken.update({"one"})
    with LocalJob(redis_url, made, partitions=1) as job:
        job.assign()
        job.send([[1, "one"], ["1", "text"], [1, "behind"]])
        job.run_until_idle()

        assert group_of(1) == group_of("1")
        assert job.values() == ["text"]
        assert held(job) == 1


# What the state of a key sees.


def test_state_goes_on_where_the_letter_left_it(redis_url: str) -> None:
    def in_order(key: str, number: int, last: int | None) -> tuple[int, int]:
        if (key, number) in wrong or number != (last or 0) + 1:
            raise ValueError(f"{number} after {last}")
        return number, number

    wrong = {("k3", 50)}
    made = Pipeline("stateful")
    keyed = made.source(read.producer(), name="in").key_by(lambda v: v[0], name="by", on_error=hold_key())
    keyed.map(lambda v: v[1], name="number").stateful_map(in_order, name="order").sink(write.stream("out"), name="out")
    with LocalJob(redis_url, made, partitions=2, limits=Limits(step_records=40)) as job:
        job.assign()
        job.send([[f"k{key}", number] for number in range(1, 101) for key in range(6)], entry_records=70)
        job.run_until_idle()
        assert held(job) == 50
        wrong.clear()
        letters_of(job).replay(the_letter(job))
        job.run_until_idle()

        assert job.by_key() == {f"k{key}": list(range(1, 101)) for key in range(6)}
        assert_free(job)


class Alarm(KeyedOperator):
    """Sets a timer for each record; those of the key b fail."""

    def process(self, keys_: Any, values: Any, state: dict[Any, Any], timers: TimerChanges) -> Emitted:
        for key, value in zip(keys_, values, strict=True):
            if value in broken:
                raise ValueError(f"no alarm for {value}")
            timers.set(key, 10)
        return Emitted([], [])

    def on_timer(self, keys_: Any, dues: Any, state: dict[Any, Any], timers: TimerChanges) -> Emitted:
        if "b" in keys_:
            raise ValueError("no alarm at all")
        return Emitted(list(dues))


def test_timers_of_a_held_key_fire_and_their_letters_hold_nothing(redis_url: str) -> None:
    made = Pipeline("timers")
    keyed = made.source(read.producer(), name="in").key_by(first_letter, name="by", on_error=hold_key())
    keyed.process(Alarm(), name="alarm").sink(write.stream("out"), name="out")
    broken.update({"a2"})
    with LocalJob(redis_url, made, partitions=1) as job:
        job.assign()
        job.send(["a1", "b1", "a2", "a3"])
        job.run_to_the_end()

        assert job.by_key() == {"a": [10]}
        assert sorted((letter.kind, letter.holds, letter.behind) for letter in letters_of(job).list()) == [
            ("record", True, 1),
            ("timer", False, 0),
        ]


# Other policies, limits, and the end.


def test_the_attempts_of_retry_come_first(redis_url: str) -> None:
    broken.add("b1")
    with LocalJob(redis_url, flow(retry(3, then=hold_key())), partitions=1) as job:
        job.assign()
        job.send(["b1", "a1", "b2", "b3"])
        job.run_through_pauses()

        [letter] = letters_of(job).list()
        assert (letter.record().values, letter.behind, len(letter.tried)) == (["b1"], 2, 2)
        assert job.values() == ["a1"]
        calls.clear()
        broken.clear()
        broken.add("b2")
        letters_of(job).replay(letter.id)
        job.run_through_pauses()

        [second] = letters_of(job).list()
        assert (second.record().values, second.behind, len(second.tried)) == (["b2"], 1, 2)
        broken.clear()
        letters_of(job).replay(second.id)
        job.run_through_pauses()
        assert job.by_key()["b"] == ["b1", "b2", "b3"]
        assert_free(job)


def test_a_record_that_kills_its_worker_holds_its_key(redis_url: str) -> None:
    class Killed(BaseException):
        """Stands for a signal."""

    def deadly(value: str) -> str:
        if value in broken:
            raise Killed
        return value

    made = Pipeline("deadly")
    keyed = made.source(read.producer(), name="in").key_by(first_letter, name="by", on_error=hold_key())
    keyed.map(deadly, name="work").sink(write.stream("out"), name="out")
    broken.add("b2")
    with LocalJob(redis_url, made, partitions=1) as job:
        job.send(["b1", "b2", "a1", "b3"])
        for deaths in range(20):
            try:
                if deaths:
                    job.restart("w0")
                else:
                    job.assign()
                job.run_until_idle()
                break
            except Killed:
                continue

        [letter] = letters_of(job).list()
        assert (letter.error, letter.behind) == ("killed its worker 3 times", 1)
        assert job.by_key() == {"a": ["a1"], "b": ["b1"]}
        broken.clear()
        letters_of(job).replay(letter.id)
        job.run_until_idle()
        assert job.by_key()["b"] == ["b1", "b2", "b3"]
        assert_free(job)


def test_a_held_record_that_seems_to_kill_its_worker_stays_behind_the_letter(job: LocalJob) -> None:
    """It was never run: whoever was killed there three times was killed from outside."""
    place = send_as_far_as_the_inbox(job, ["b5", "b6"])
    position = str(job.facts(place).position)
    job.client.hset(keys.meta("j", *place), mapping={"deaths": 3, "deaths_at": position})
    job.assign("w1", [place])
    job.run_and_sweep()

    assert [letter.behind for letter in letters_of(job).list()] == [4]
    broken.clear()
    letters_of(job).replay(the_letter(job))
    job.run_until_idle()
    assert job.by_key()["b"] == ["b1", "b2", "b3", "b4", "b5", "b6"]
    assert_free(job)


@pytest.mark.parametrize("limits", [Limits(dead_letters=3), Limits(dead_letter_bytes=6_500)])
def test_what_is_held_counts_against_the_limits_and_the_job_goes_on_when_it_goes(
    redis_url: str, limits: Limits
) -> None:
    broken.add("b0")
    with LocalJob(redis_url, flow(), partitions=1, limits=limits) as job:
        job.assign()
        job.send(["b0", "b1", "b2"])
        job.run_until_idle()
        assert next_state(job.jobs.facts("j")) is None
        for number in range(3, 30):
            job.send([f"b{number}"])
            job.run_until_idle()

        change = next_state(job.jobs.facts("j"))
        assert change is not None
        assert change.to is JobState.FAILED
        assert " and 29 records held behind them" in change.reason
        job.jobs.transition("j", JobState.FAILED, change.reason)

        broken.clear()
        letters_of(job).replay(the_letter(job))
        job.jobs.transition("j", JobState.RUNNING)
        assert next_state(job.jobs.facts("j")) is None
        job.assign()
        job.run_and_sweep()
        assert job.values() == [f"b{number}" for number in range(30)]
        assert_free(job)


def test_a_full_inbox_takes_what_lets_a_key_go(redis_url: str) -> None:
    broken.add("b1")
    with LocalJob(redis_url, flow(), partitions=1, limits=Limits(inbox_records=3)) as job:
        job.assign()
        job.send(["b1", "b2"])
        job.run_until_idle()
        for _ in range(4):
            job.send(["a1"])
            job.slice("w0", (0, 0))
        assert job.facts((1, 0)).backlog >= 3

        letters_of(job).drop([the_letter(job)])
        job.run_and_sweep()
        assert job.by_key() == {"a": ["a1"] * 4, "b": ["b2"]}


def test_a_job_whose_input_has_ended_keeps_what_is_held_and_says_so(job: LocalJob) -> None:
    job.run_to_the_end()

    assert held(job) == 2
    id_ = the_letter(job)
    for refused in (lambda: letters_of(job).replay(id_), lambda: letters_of(job).drop([id_])):
        with pytest.raises(JobStateError, match=r"ended, and 2 records held behind it could not go on") as caught:
            refused()
        assert "celeriac remove" in caught.value.hint
    assert held(job) == 2


def test_a_letter_that_holds_nothing_back_can_be_dropped_at_the_end(redis_url: str) -> None:
    broken.add("b1")
    with LocalJob(redis_url, flow(), partitions=1) as job:
        job.assign()
        job.send(["b1"])
        job.run_until_idle()
        job.end_input()
        with pytest.raises(JobStateError):  # a record of its key may be on its way yet
            letters_of(job).drop([the_letter(job)])
        job.run_until_idle()
        job.assert_done()

        assert letters_of(job).drop([the_letter(job)]) == 1
        assert hold_keys(job) == []


def test_a_removed_job_leaves_nothing(job: LocalJob) -> None:
    assert hold_keys(job) != []
    job.jobs.erase("j")

    assert job.client.keys("*{j}*") == []


# The faces.


def command(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> str:
    assert run_command([*arguments, "--redis", url]) == 0
    return capsys.readouterr().out


def test_commands_say_what_is_held(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    id_ = the_letter(job)

    [line] = command(capsys, job.url, "dead-letters", "list", "j").splitlines()
    assert 'work  "b"  holds 2  ValueError: cannot work on b2' in line
    assert 'holds      2 records of key "b"' in command(capsys, job.url, "dead-letters", "show", "j", id_).splitlines()
    assert json.loads(command(capsys, job.url, "dead-letters", "show", "j", id_, "--json"))["holds"] == 2
    assert "dead letters: 1 record given up, 2 records held behind" in command(capsys, job.url, "status", "j")
    assert json.loads(command(capsys, job.url, "status", "j", "--json"))["held"] == 2
    assert command(capsys, job.url, "dead-letters", "drop", "j", "--all") == "1 dropped\n"


def test_a_client_gives_the_dead_letters(job: LocalJob) -> None:
    broken.clear()
    with Client(job.url) as client:
        letters = client.dead_letters("j")
        [letter] = letters.list(operator="work")
        assert letter.behind == 2
        letters.replay(letter.id)

    job.run_until_idle()
    assert job.by_key()["b"] == ["b1", "b2", "b3", "b4"]
