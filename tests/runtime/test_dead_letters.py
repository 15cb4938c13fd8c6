"""Dead letters: looked at, edited, put back where they failed, once and in order, and dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline import Pipeline, read, write
from pipeline.cli.main import run_command
from pipeline.codec import encode_batch
from pipeline.deadletters import DeadLetters
from pipeline.errors import EncodingError, InboxFull, JobStateError, LetterError, StoreUnavailable
from pipeline.lifecycle import JobState
from pipeline.messages import Data, encode_header
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.jobs import JobStore
from pipeline.store.letters import LetterStore
from tests.runtime.harness import FlakyScripts, LocalJob, Moment

broken: set[str] = set()
"""Values for which the operator fails just now."""


def work(value: Any) -> Any:
    if isinstance(value, str) and value in broken:
        raise ValueError(f"cannot work on {value}")
    return value


def flow() -> Pipeline:
    made = Pipeline("letters")
    keyed = made.source(read.producer(), name="in").key_by(lambda v: v[0], name="by")
    keyed.map(work, name="work").sink(write.stream("out"), name="out")
    return made


@pytest.fixture
def job(redis_url: str) -> Iterator[LocalJob]:
    broken.clear()
    broken.update({"b1", "b2", "d1"})
    with LocalJob(redis_url, flow(), partitions=2) as made:
        made.assign()
        made.send(["a1", "b1", "c1", "b2", "d1", "b3"])
        made.run_until_idle()
        yield made


@pytest.fixture
def letters(job: LocalJob) -> DeadLetters:
    return DeadLetters("j", job.url)


def ids(letters: DeadLetters) -> dict[str, str]:
    """Value -> id."""
    return {letter.record().values[0]: letter.id for letter in letters.list()}


def test_letters_hold_the_record_and_are_found_by_operator(letters: DeadLetters) -> None:
    assert sorted(ids(letters)) == ["b1", "b2", "d1"]
    assert [letter.id for letter in letters.list(operator="other")] == []
    letter = letters.show(ids(letters)["b1"])
    assert (letter.operator, letter.error, letter.kind) == ("work", "ValueError: cannot work on b1", "record")
    assert letter.record().keys == ["b"]
    assert "in work" in letter.traceback


def test_a_replay_puts_the_record_back_once(job: LocalJob, letters: DeadLetters) -> None:
    broken.clear()
    id_ = ids(letters)["b1"]

    letters.replay(id_)

    with pytest.raises(LetterError, match="no dead letter"):
        letters.replay(id_)
    job.run_until_idle()
    assert job.by_key()["b"] == ["b3", "b1"]
    assert sorted(ids(letters)) == ["b2", "d1"]
    job.assert_balanced()


def test_replays_keep_their_order(job: LocalJob, letters: DeadLetters) -> None:
    broken.clear()
    for id_ in [letter.id for letter in letters.list()]:
        letters.replay(id_)
    job.run_until_idle()

    assert job.by_key()["b"] == ["b3", "b1", "b2"]
    assert list(letters.list()) == []


def test_an_edited_value_is_what_a_replay_takes(job: LocalJob, letters: DeadLetters) -> None:
    id_ = ids(letters)["d1"]
    letters.edit(id_, "d-corrected")

    letter = letters.show(id_)
    assert letter.record().values == ["d-corrected"]
    letters.replay(id_)
    job.run_until_idle()

    assert job.by_key()["d"] == ["d-corrected"]
    assert not job.client.exists(keys.dead_edits("j"))


def test_an_edit_that_does_not_fit_is_refused_and_the_letter_stays(letters: DeadLetters) -> None:
    id_ = ids(letters)["d1"]
    for value, error in ((object(), EncodingError), ("x" * 2_000_000, LetterError)):
        with pytest.raises(error):
            letters.edit(id_, value)

    assert letters.show(id_).edited == b""


def test_a_replay_that_fails_again_is_a_letter_that_names_the_first(job: LocalJob, letters: DeadLetters) -> None:
    first = ids(letters)["b1"]
    letters.replay(first)
    job.run_until_idle()

    assert [letter.replay_of for letter in letters.list() if letter.record().values == ["b1"]] == [first]
    job.send(["b2", "b1"])
    job.run_until_idle()
    assert [letter.replay_of for letter in letters.list()][-2:] == ["", ""]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_reply_of_a_replay_never_doubles_the_record(job: LocalJob, letters: DeadLetters, moment: Moment) -> None:
    broken.clear()
    scripts = FlakyScripts(job.client)
    store = LetterStore(scripts, JobStore(scripts).read("j"))
    letter = store.get(ids(letters)["d1"])
    scripts.break_call(moment)
    with pytest.raises(StoreUnavailable):
        store.replay(letter)
    if moment == "before":
        store.replay(letter)
    else:
        with pytest.raises(LetterError):
            store.replay(letter)

    job.run_until_idle()
    assert job.by_key()["d"] == ["d1"]


def test_a_job_whose_input_has_ended_takes_no_replay(job: LocalJob, letters: DeadLetters) -> None:
    job.end_input()

    with pytest.raises(JobStateError, match="the input of its stage has ended") as caught:
        letters.replay(ids(letters)["b1"])

    assert "drop" in caught.value.hint
    assert len(list(letters.list())) == 3


def test_a_failed_job_takes_replays_and_goes_on_with_them(job: LocalJob, letters: DeadLetters) -> None:
    job.jobs.transition("j", JobState.FAILED, "too many")
    broken.clear()
    letters.replay(ids(letters)["d1"])

    job.jobs.transition("j", JobState.RUNNING)
    job.assign()
    job.run_and_sweep()
    assert job.by_key()["d"] == ["d1"]


def test_a_full_inbox_takes_no_replay_and_the_letter_stays(redis_url: str) -> None:
    broken.clear()
    broken.add("b1")
    with LocalJob(redis_url, flow(), partitions=1, limits=Limits(inbox_records=3)) as job:
        job.assign()
        job.send(["b1"])
        job.run_until_idle()
        job.assign("w1", [(1, 0)], is_told=False)
        header = Data("0.0", 2, 3, None, 1)
        job.append_entry((1, 0), encode_header(header), encode_batch(Batch(["a"] * 3, ["a"] * 3)), 3)
        letters = DeadLetters("j", redis_url)

        with pytest.raises(InboxFull):
            letters.replay(ids(letters)["b1"])

        assert len(list(letters.list())) == 1


def test_letters_are_dropped(job: LocalJob, letters: DeadLetters) -> None:
    known = ids(letters)
    letters.edit(known["b1"], "b9")

    assert letters.drop([known["b1"], known["b2"], "1-1", "nonsense"]) == 2
    assert sorted(ids(letters)) == ["d1"]
    assert not job.client.exists(keys.dead_edits("j"))
    assert job.jobs.facts("j").dead_letters == 1


def test_a_removed_job_leaves_no_letter(job: LocalJob, letters: DeadLetters) -> None:
    letters.edit(ids(letters)["b1"], "b9")
    job.jobs.erase("j")

    assert job.client.keys("*{j}*") == []


def test_too_many_bytes_of_letters_fail_the_job(job: LocalJob) -> None:
    assert 0 < job.jobs.facts("j").dead_letter_bytes < 1 << 20


# The command.


def command(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> tuple[int, str, str]:
    code = run_command(["dead-letters", *arguments, "--redis", url])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_list_is_a_line_each_of_at_most_80_characters(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    broken.add("e" * 300)
    job.send(["e" * 300])
    job.run_until_idle()

    code, out, _ = command(capsys, job.url, "list", "j")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == 4
    assert all(len(line) <= 80 for line in lines)
    assert 'work  "b"  ValueError: cannot work on b1' in out

    code, out, _ = command(capsys, job.url, "list", "j", "--operator", "work", "--json")
    assert [json.loads(line)["key"] for line in out.splitlines()] == sorted(["b", "b", "d", "e"])

    assert command(capsys, job.url, "list", "j", "--operator", "none") == (0, "", "no dead letters\n")


def test_one_is_shown_edited_and_replayed(
    job: LocalJob, letters: DeadLetters, capsys: pytest.CaptureFixture[str]
) -> None:
    id_ = ids(letters)["b1"]
    code, out, _ = command(capsys, job.url, "show", "j", id_)
    assert code == 0
    assert "ValueError: cannot work on b1" in out
    assert "Traceback" in out

    code, _, err = command(capsys, job.url, "edit", "j", id_, "--value", "{not json")
    assert code != 0
    assert "this is no JSON" in err
    code, out, _ = command(capsys, job.url, "edit", "j", id_, "--value", '"b0"')
    assert code == 0
    code, out, _ = command(capsys, job.url, "show", "j", id_)
    assert 'edited to  "b0"' in out

    assert command(capsys, job.url, "replay", "j", id_)[:2] == (0, "1 replayed\n")
    job.run_until_idle()
    assert job.by_key()["b"] == ["b3", "b0"]
    code, _, err = command(capsys, job.url, "replay", "j", id_)
    assert code == 2
    assert "no dead letter" in err


def test_all_are_replayed_or_dropped_only_when_that_is_said(job: LocalJob, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = command(capsys, job.url, "drop", "j")
    assert code == 2
    assert "which dead letters?" in err
    broken.clear()

    assert command(capsys, job.url, "replay", "j", "--operator", "work")[:2] == (0, "3 replayed\n")
    assert command(capsys, job.url, "drop", "j", "--all")[:2] == (0, "0 dropped\n")
    job.run_until_idle()
    assert job.by_key()["b"] == ["b3", "b1", "b2"]
