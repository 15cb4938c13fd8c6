"""Swapping the state of keys in Redis: refused as a whole where anything is foreign, and nothing is held back then."""

from __future__ import annotations

import pytest
from bench import KEYED, Bench

from leader.duties.heldback import HeldBack
from pipeline.errors import Busy, ForeignData, JobStateError, OperationLost, StoreRestarted, UnknownJob
from pipeline.keying import group_of
from pipeline.lifecycle import JobState
from pipeline.operations import About, Claim, Phase
from pipeline.records import Timer
from pipeline.store import keys
from pipeline.store.claims import ClaimStore
from pipeline.store.swaps import NewState, SwapStore, let_go


def undertake(bench: Bench) -> Claim:
    return ClaimStore(bench.scripts).undertake("j", About("backfill", "words", keys=2), Phase.RECOMPUTING)


def store_of(bench: Bench) -> SwapStore:
    record = bench.jobs.read("j")
    return SwapStore(bench.scripts, record, record.plan.up_to(1))


def new_state(bench: Bench) -> NewState:
    values = {("out", "a"): 1, ("out", 2): {"n": [1.5, None]}}
    return NewState(bench.plan.stage(1), ("out",), frozenset(["a", 2, "gone"]), values, [Timer("out", "a", 7)])


def test_state_and_timers_of_the_keys_are_what_was_given_and_those_of_others_stay(bench: Bench) -> None:
    claim, store = undertake(bench), store_of(bench)
    assert store.swap(claim, store.stand(), new_state(bench)) == "swapped"
    more = NewState(bench.plan.stage(1), ("out",), frozenset(["b"]), {("out", "b"): 5}, [Timer("out", "b", 9)])
    assert store.swap(claim, store.stand(), more) == "swapped"
    before = {key: value for key, value in bench.snapshot().items() if b":state:" in key or b":timers:" in key}
    assert len([field for value in before.values() for field in value]) == 5

    again = NewState(bench.plan.stage(1), ("out",), frozenset(["b"]), {("out", "b"): 5}, [Timer("out", "b", 9)])
    assert store.swap(claim, store.stand(), again) == "swapped"
    assert {key: value for key, value in bench.snapshot().items() if b":state:" in key or b":timers:" in key} == before
    empty = NewState(bench.plan.stage(1), ("out",), frozenset(["a", 2, "b"]), {}, [])
    assert store.swap(claim, store.stand(), empty) == "swapped"

    assert [key for key in bench.snapshot() if b":state:" in key or b":timers:" in key] == []


@pytest.mark.parametrize("name", ["operation", "assignment", "control", "moving", "meta", "state", "timers"])
def test_a_key_of_another_type_refuses_the_whole_swap(bench: Bench, name: str) -> None:
    claim, store = undertake(bench), store_of(bench)
    stand = store.stand()
    group = group_of("a")
    key = {
        "operation": keys.operation("j"),
        "assignment": keys.assignment("j"),
        "control": keys.control("j"),
        "moving": keys.moving("j"),
        "meta": keys.meta("j", *KEYED),
        "state": keys.state("j", 1, group),
        "timers": keys.timers("j", 1, "out", group),
    }[name]
    bench.client.delete(key)
    bench.client.lpush(key, "mine")
    before = bench.snapshot()

    with pytest.raises(ForeignData):
        store.swap(claim, stand, new_state(bench))

    assert bench.snapshot() == before
    bench.client.delete(key)


def test_what_is_no_number_refuses_the_whole_swap(bench: Bench) -> None:
    claim, store = undertake(bench), store_of(bench)
    stand = store.stand()
    bench.client.hset(keys.meta("j", *KEYED), "head", "many")
    before = bench.snapshot()

    with pytest.raises(ForeignData, match="head"):
        store.swap(claim, stand, new_state(bench))
    with pytest.raises(ForeignData, match="head"):
        store.stand()

    assert bench.snapshot() == before


def test_a_swap_under_another_plan_claim_or_run_of_the_server_is_refused(bench: Bench) -> None:
    claim, store = undertake(bench), store_of(bench)
    stand, new, job = store.stand(), new_state(bench), keys.job("j")

    def refused(error: type[Exception], field: str, value: str) -> None:
        was = bench.client.hget(job, field)
        bench.client.hset(job, field, value)
        before = bench.snapshot()
        with pytest.raises(error):
            store.swap(claim, stand, new)
        assert bench.snapshot() == before
        bench.client.hdel(job, field)
        if was is not None:
            bench.client.hset(job, field, was)

    refused(Busy, "table", "7")
    refused(Busy, "saving", "1")
    refused(JobStateError, "state", "draining")
    with pytest.raises(OperationLost):
        store.swap(Claim("j", "other"), stand, new)
    refused(StoreRestarted, "run_id", "another")
    bench.client.delete(job)
    with pytest.raises((UnknownJob, StoreRestarted)):
        store.swap(claim, stand, new)


def test_an_owner_that_has_come_meanwhile_knows_the_old_state_and_refuses_the_swap(bench: Bench) -> None:
    claim, store = undertake(bench), store_of(bench)
    stand = store.stand()
    bench.worker(KEYED)

    assert store.swap(claim, stand, new_state(bench)) == "not yet"

    before = bench.meta(KEYED)["token"]
    assert store.swap(claim, store.stand(), new_state(bench)) == "swapped"
    assert bench.meta(KEYED)["token"] != before


def test_sources_are_held_back_and_let_go_all_or_none(bench: Bench) -> None:
    claim, store = undertake(bench), store_of(bench)
    store.hold_back(claim)
    store.hold_back(claim)  # the answer was lost, and it is asked again
    record = bench.jobs.read("j")
    assert (list(record.paused), record.held_back) == (["lines"], f"{claim.token}\nlines")
    assert bench.meta()["paused"] == "1"

    assert not let_go(bench.scripts, record, record.held_back, is_own=False)
    assert not let_go(bench.scripts, record, f"{claim.token}\nothers", is_own=True)
    assert bench.jobs.read("j").paused
    assert let_go(bench.scripts, record, record.held_back, is_own=True)
    assert not let_go(bench.scripts, record, record.held_back, is_own=True)
    record = bench.jobs.read("j")
    assert (record.paused, record.held_back, "paused" in bench.meta()) == ({}, "", False)

    with pytest.raises(OperationLost):
        store.hold_back(Claim("j", "other"))
    bench.jobs.transition("j", JobState.DRAINING)
    with pytest.raises(JobStateError, match="is draining"):
        store.hold_back(claim)
    assert bench.jobs.read("j").paused == {}


def test_what_a_command_that_is_gone_holds_back_its_successor_lets_go(bench: Bench) -> None:
    first, store = undertake(bench), store_of(bench)
    store.hold_back(first)
    bench.client.hset(keys.operation("j"), "until", 1)
    second = undertake(bench)

    store.hold_back(second)

    record = bench.jobs.read("j")
    assert record.held_back == f"{second.token}\nlines"
    assert let_go(bench.scripts, record, record.held_back, is_own=True)
    assert bench.jobs.read("j").paused == {}


def test_a_successor_also_lets_go_what_its_own_keys_have_nothing_to_do_with(bench: Bench) -> None:
    store = store_of(bench)
    store.hold_back(undertake(bench))
    bench.client.hset(keys.operation("j"), "until", 1)
    second = undertake(bench)

    SwapStore(bench.scripts, bench.jobs.read("j"), []).hold_back(second)  # of a stage with other sources

    record = bench.jobs.read("j")
    assert (list(record.paused), record.held_back) == (["lines"], f"{second.token}\nlines")
    assert let_go(bench.scripts, record, record.held_back, is_own=True)
    assert bench.jobs.read("j").paused == {}


def test_the_leader_lets_go_what_is_left_while_the_next_backfill_is_at_work(bench: Bench) -> None:
    store_of(bench).hold_back(undertake(bench))
    bench.client.hset(keys.operation("j"), "until", 1)
    undertake(bench)

    assert HeldBack(bench.scripts).run_once(bench.jobs.facts("j"), bench.token) == {"sources_let_go": 1}

    assert bench.jobs.read("j").paused == {}


def test_a_foreign_key_refuses_holding_back_and_letting_go(bench: Bench) -> None:
    claim, store = undertake(bench), store_of(bench)
    bench.client.delete(keys.meta("j", 0, 0))
    bench.client.set(keys.meta("j", 0, 0), "mine")
    before = bench.snapshot()

    with pytest.raises(ForeignData):
        store.hold_back(claim)
    with pytest.raises(ForeignData):
        let_go(bench.scripts, bench.jobs.read("j"), f"{claim.token}\nlines", is_own=True)

    assert bench.snapshot() == before
