"""A paused source takes no new number and goes on where it stood; and the history of a job's states."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from bench import ENTRY, Bench, a_batch

from pipeline.errors import ForeignData, InboxClosed, JobStateError, SourcePaused, StaleTerm, UnknownJob
from pipeline.lifecycle import JobState
from pipeline.operations import About, Phase
from pipeline.scaling.decision import Decision
from pipeline.scaling.load import Load
from pipeline.scaling.policies import Kind
from pipeline.scaling.settings import Scaling
from pipeline.store import keys
from pipeline.store.claims import ClaimStore
from pipeline.store.scaling import ScalingStore


def pause(bench: Bench, *, is_paused: bool = True) -> bool:
    return bench.jobs.pause(bench.jobs.read("j"), "lines", is_paused=is_paused)


def test_a_paused_source_takes_no_new_number_and_goes_on_where_it_stood(bench: Bench) -> None:
    lane = bench.lane()
    lane.append(1, a_batch("a"))
    assert pause(bench)

    with pytest.raises(SourcePaused, match="'lines' of job 'j' is paused") as caught:
        lane.append(2, a_batch("b"))
    assert caught.value.hint == "`celeriac unpause j lines` lets it go on"
    assert len(bench.entries()) == 1

    assert pause(bench, is_paused=False)
    lane.append(2, a_batch("b"))
    assert len(bench.entries()) == 2


def test_a_duplicate_is_taken_by_a_paused_source_too(bench: Bench) -> None:
    """A sender whose reply was lost must learn that its records are safe."""
    bench.lane().append(1, a_batch("a"))
    pause(bench)

    again = bench.lane()
    again.taken = 0
    again.append(1, a_batch("a"))

    assert again.taken == 1


def test_only_the_entry_partitions_of_that_source_are_held_back(make: Callable[..., Bench]) -> None:
    bench = make(partitions=2)
    pause(bench)

    held = [bench.client.hget(keys.meta("j", s, p), "paused") for s in (0, 1) for p in (0, 1)]

    assert held == [b"1", b"1", None, None]
    assert set(bench.jobs.read("j").paused) == {"lines"}


def test_pausing_twice_is_told_and_changes_nothing(bench: Bench) -> None:
    assert pause(bench)
    since = bench.jobs.read("j").paused

    assert not pause(bench)

    assert bench.jobs.read("j").paused == since
    assert pause(bench, is_paused=False)
    assert not pause(bench, is_paused=False)
    assert bench.jobs.read("j").paused == {}


def test_a_paused_job_that_drains_ends_its_input(bench: Bench) -> None:
    lane = bench.lane()
    lane.append(1, a_batch("a"))
    pause(bench)
    bench.jobs.transition("j", JobState.DRAINING)

    with pytest.raises(InboxClosed):
        lane.append(2, a_batch("b"))
    assert bench.leadership.close_source("j", bench.token, bench.plan, "lines") == 1
    assert bench.facts(ENTRY).closed


def test_a_job_that_takes_no_input_is_not_paused_and_one_that_is_gone_is_said(bench: Bench) -> None:
    record = bench.jobs.read("j")
    bench.jobs.transition("j", JobState.DRAINING)
    with pytest.raises(JobStateError, match="'j' is draining: it takes no input any more"):
        bench.jobs.pause(record, "lines", is_paused=True)

    bench.jobs.erase("j")
    with pytest.raises(UnknownJob):
        bench.jobs.pause(record, "lines", is_paused=True)


def test_the_history_has_every_state_with_its_reason(bench: Bench) -> None:
    bench.jobs.transition("j", JobState.FAILED, "a sink\nis   away")
    bench.jobs.transition("j", JobState.RUNNING)
    with pytest.raises(JobStateError):
        bench.jobs.transition("j", JobState.FINISHED, "not from here")
    with pytest.raises(StaleTerm):
        bench.jobs.transition("j", JobState.FAILED, "a leader of before", leader_token="0:x")

    history = bench.jobs.read("j").history

    assert [(each.state, each.reason) for each in history] == [
        (JobState.RUNNING, ""),
        (JobState.FAILED, "a sink is away"),
        (JobState.RUNNING, ""),
    ]
    assert [each.at_ms for each in history] == sorted(each.at_ms for each in history)
    assert history[-1].at_ms == bench.jobs.read("j").changed_at_ms


def test_the_history_is_bounded_in_changes_and_in_the_length_of_reasons(bench: Bench) -> None:
    for number in range(40):
        bench.jobs.transition("j", JobState.FAILED, f"{number} " + "ä" * 300)
        bench.jobs.transition("j", JobState.RUNNING)

    history = bench.jobs.read("j").history

    assert len(history) == 50
    assert history[-2].reason.startswith("39 ää")
    assert history[-2].reason.endswith("ä...")
    assert max(len(each.reason.encode()) for each in history) <= 203


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\x1e", "\n", "\t"], ids=ascii)
def test_a_reason_or_an_outcome_with_the_ends_of_lines_that_python_knows_is_one_line(bench: Bench, end: str) -> None:
    """A user's exception may say anything; a record that cannot be read stops leader and commands."""
    claims, words = ClaimStore(bench.scripts), f"ValueError: a{end}b"
    claims.end(claims.undertake("j", About("backfill", "words"), Phase.RECOMPUTING), words)
    bench.jobs.transition("j", JobState.FAILED, words)

    record = bench.jobs.read("j")

    assert record.reason == words
    wanted = words.replace(end, " ") if end.isascii() and end != "\x1e" else words
    assert (record.history[-1].reason, record.operations[-1].outcome) == (wanted, wanted)


@pytest.mark.foreign_keys("celeriac:{j}:meta:0.1")
def test_a_key_of_another_type_stops_a_pause_before_its_first_write(make: Callable[..., Bench]) -> None:
    bench = make(partitions=2)
    bench.client.delete(keys.meta("j", 0, 1))
    bench.client.set(keys.meta("j", 0, 1), "foreign")

    with pytest.raises(ForeignData):
        pause(bench)

    assert bench.client.hget(keys.meta("j", 0, 0), "paused") is None
    assert bench.jobs.read("j").paused == {}


def test_a_holder_holds_back_what_is_not_paused_and_lets_only_that_go_on(bench: Bench) -> None:
    record, hold = bench.jobs.read("j"), partial(bench.jobs.pause, bench.jobs.read("j"), "lines", holder="one")
    assert hold(is_paused=True)
    assert hold(is_paused=True)  # its answer may have been lost
    assert set(bench.jobs.read("j").paused) == {"lines"}
    assert not bench.jobs.pause(record, "lines", is_paused=True, holder="other")
    assert not bench.jobs.pause(record, "lines", is_paused=False, holder="other")
    assert hold(is_paused=False)
    assert not hold(is_paused=False)
    assert bench.jobs.read("j").paused == {}

    assert hold(is_paused=True)
    assert pause(bench)
    assert not pause(bench)
    assert not hold(is_paused=False)

    with pytest.raises(SourcePaused):
        bench.lane().append(1, a_batch("a"))
    assert pause(bench, is_paused=False)
    bench.lane().append(1, a_batch("a"))


def test_who_lets_a_source_go_on_does_so_whoever_holds_it(bench: Bench) -> None:
    bench.jobs.pause(bench.jobs.read("j"), "lines", is_paused=True, holder="one")

    assert pause(bench, is_paused=False)

    bench.lane().append(1, a_batch("a"))


@pytest.mark.parametrize("what", ["source", "stage", "workers"])
def test_a_clock_that_another_program_has_bent_stops_a_change_before_its_first_write(bench: Bench, what: str) -> None:
    ScalingStore(bench.scripts).configure("j", Scaling(2, 6))
    pause(bench)
    record = bench.jobs.read("j")
    bench.client.hset(keys.job("j"), "now", "noon")
    before = bench.client.hgetall(keys.job("j"))
    decision = Decision(1, Kind.UP, 2, 4, "why", "ds2", Load(5.0, (), 2, 2), ())
    changes = {
        "source": lambda: bench.jobs.pause(record, "lines", is_paused=False),
        "stage": lambda: bench.jobs.pause_stage(record, "lines", is_paused=True),
        "workers": lambda: ScalingStore(bench.scripts).decide("j", bench.token, decision),
    }

    with pytest.raises(ForeignData):
        changes[what]()

    assert bench.client.hgetall(keys.job("j")) == before
    assert bench.client.hget(keys.meta("j", 0, 0), "paused") == b"1"
