"""The cut of a savepoint: what an exporter reads is the job at one instant, whatever is committed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bench import ENTRY, KEYED, Bench, Hand, a_batch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pipeline.codec import decode_batch, state_field
from pipeline.errors import JobStateError, NotQuiet, SavepointError, SavepointLost, StoreError, UnknownJob
from pipeline.lifecycle import JobState
from pipeline.positions import Position
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.commits import Refusal, Refused, Write
from pipeline.store.cuts import CutStore, Page

FIELDS = [state_field("op", f"k{number}") for number in range(6)]
MEMBERS = [f"timer-{number}".encode() for number in range(4)]


def a_store(bench: Bench) -> CutStore:
    return CutStore(bench.scripts, bench.job, bench.plan)


def a_state(bench: Bench, group: int) -> str:
    return keys.state(bench.job, 0, group)


def exported(pages: Iterator[Page]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for page in pages:
        for name, value in page.found:
            assert name not in found
            found[name] = value
    return found


def kept_keys(bench: Bench) -> list[bytes]:
    """What is kept for a savepoint, and what says that there is one."""
    prefix = keys.of_job(bench.job)
    return [
        key for key in bench.client.scan_iter() if key.decode().startswith((f"{prefix}:was", f"{prefix}:savepoint"))
    ]


def steps() -> Any:
    """Changes of states and timers, with a cut somewhere, and the reading of pages in between."""
    group = st.integers(0, 1)
    put = st.tuples(st.just("put"), group, st.dictionaries(st.sampled_from(FIELDS), st.binary(min_size=1, max_size=4)))
    gone = st.tuples(st.just("gone"), group, st.lists(st.sampled_from(FIELDS), min_size=1))
    timer = st.tuples(st.just("timer"), group, st.dictionaries(st.sampled_from(MEMBERS), st.integers(0, 2**52)))
    fired = st.tuples(st.just("fired"), group, st.lists(st.sampled_from(MEMBERS), min_size=1))
    send = st.tuples(st.just("send"), st.just(0), st.integers(1, 3))
    take = st.tuples(st.just("take"), st.just(0), st.integers(1, 4))
    read = st.tuples(st.just("read"), st.just(0), st.just(0))
    return st.lists(st.one_of(put, gone, timer, fired, send, take, read), max_size=20)


class Model:
    """What Redis must hold, in the ten lines that it takes without a savepoint."""

    def __init__(self) -> None:
        self.states: list[dict[bytes, bytes]] = [{}, {}]
        self.timers: list[dict[bytes, int]] = [{}, {}]
        self.waiting: list[int] = []
        self.sent = 0

    def change(self, kind: str, group: int, what: Any) -> list[Write]:
        if kind == "put":
            self.states[group].update(what)
            return [Write("HSET", f"state {group}", [part for pair in what.items() for part in pair])]
        if kind == "timer":
            self.timers[group].update(what)
            return [Write("ZADD", f"timers {group}", [part for name, due in what.items() for part in (due, name)])]
        table: dict[bytes, Any] = (self.states if kind == "gone" else self.timers)[group]
        for name in what:
            table.pop(name, None)
        return [Write("HDEL" if kind == "gone" else "ZREM", f"{'state' if kind == 'gone' else 'timers'} {group}", what)]


def apply(bench: Bench, hand: Hand, model: Model, step: tuple[str, int, Any]) -> None:
    kind, group, what = step
    if kind == "send":
        values = list(range(model.sent, model.sent + what))
        bench.lane().append(model.sent + 1, a_batch(*values))
        model.sent, model.waiting = model.sent + what, model.waiting + values
    elif kind == "take":
        count = min(what, len(model.waiting))
        model.waiting = model.waiting[count:]
        end = model.sent - len(model.waiting)
        entries = {int(entry.id.partition("-")[0]): entry for entry in bench.entries()}
        start = max((first for first in [*entries, 1] if first <= end + 1), default=1)
        hand.commit(Position(f"{start}-0", end + 1 - start), taken=count)
    elif kind != "read" and what:
        names = {"state": a_state(bench, group), "timers": keys.timers(bench.job, 0, "op", group)}
        writes = [Write(w.command, names[w.key.split()[0]], w.values) for w in model.change(kind, group, what)]
        hand.commit(writes=writes)


# An example is not made smaller: each takes a server emptied anew.
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(before=steps(), after=steps())
def test_the_export_is_the_job_at_the_cut_whatever_is_committed_while_it_is_read(
    make: Callable[..., Bench], before: Any, after: Any
) -> None:
    bench = make()
    try:
        hand, model, store = bench.worker(), Model(), a_store(bench)
        for step in before:
            apply(bench, hand, model, step)
        states = [dict(state) for state in model.states]
        timers = [{name: str(due).encode() for name, due in table.items()} for table in model.timers]
        waiting = list(model.waiting)

        cut = store.cut("s")
        readers = [store.at_cut([a_state(bench, group)], "h") for group in (0, 1)]
        readers += [store.at_cut([keys.timers(bench.job, 0, "op", group)], "z") for group in (0, 1)]
        found: list[dict[bytes, bytes]] = [{}, {}, {}, {}]
        turn = 0
        for step in after:
            apply(bench, hand, model, step)
            if step[0] == "read" and turn < 4:
                found[turn] = exported(readers[turn])
                store.hold(cut, [a_state(bench, turn)] if turn < 2 else [])
                turn += 1
        for number in range(turn, 4):
            found[number] = exported(readers[number])
        entries = list(store.in_flight(*ENTRY))
        store.hold(cut)
        store.let_go(cut)

        assert found[:2] == states
        assert found[2:] == timers
        assert [int(bench.client.hlen(a_state(bench, g))) for g in (0, 1)] == [len(state) for state in model.states]
        assert values_behind(entries, waiting) == waiting
        assert kept_keys(bench) == []
        assert not bench.client.hexists(keys.meta("j", *ENTRY), "mark")
    finally:
        bench.client.flushall()
        bench.close()


def values_behind(entries: list[tuple[str, bytes, bytes]], waiting: list[int]) -> list[int]:
    """The values of exported entries; of the first one only those that were not passed at the cut."""
    by_entry = [decode_batch(payload).values for _, _, payload in entries]
    values = [value for each in by_entry for value in each]
    passed = len(values) - len(waiting)
    assert 0 <= passed <= len(by_entry[0] if by_entry else ())
    return values[passed:]


def test_each_old_value_is_kept_once_and_nothing_when_no_savepoint_is_written(bench: Bench) -> None:
    hand, state = bench.worker(), a_state(bench, 3)
    hand.commit(writes=[Write("HSET", state, ["a", 1, "b", 2])])
    assert kept_keys(bench) == []

    cut = a_store(bench).cut("s")
    hand.commit(writes=[Write("HSET", state, ["a", 10, "c", 30])])
    hand.commit(writes=[Write("HSET", state, ["a", 11]), Write("HDEL", state, ["c", "b"])])

    kept = bench.client.hgetall(keys.was("j", state))
    assert {name: value for name, value in kept.items() if name} == {b"a": b"1", b"b": b"2", b"c": b""}
    assert exported(a_store(bench).at_cut([state], "h")) == {b"a": b"1", b"b": b"2"}
    assert cut.epoch == 1


def test_entries_in_front_of_the_mark_are_kept_when_they_are_passed_and_those_behind_it_are_not(bench: Bench) -> None:
    lane, hand, store = bench.lane(), bench.worker(), a_store(bench)
    lane.append(1, a_batch("a", "b"))
    lane.append(3, a_batch("c"))
    store.cut("s")
    lane.append(4, a_batch("d"))

    hand.commit(Position("3-0"), taken=2)
    hand.commit(Position("5-0"), taken=2)

    assert bench.values() == []
    assert [decode_batch(payload).values for _, _, payload in store.in_flight(*ENTRY)] == [["a", "b"], ["c"]]
    assert not bench.client.hexists(keys.meta("j", *ENTRY), "mark")


def test_a_group_that_is_exported_is_kept_no_more_and_gives_its_room_back(bench: Bench) -> None:
    hand, store, state = bench.worker(), a_store(bench), a_state(bench, 3)
    hand.commit(writes=[Write("HSET", state, ["a", "x" * 1000])])
    cut = store.cut("s")
    hand.commit(writes=[Write("HSET", state, ["a", "y"])])
    assert int(bench.client.hget(keys.savepoint("j"), "bytes")) > 1000

    exported(store.at_cut([state], "h"))
    store.hold(cut, [state])
    hand.commit(writes=[Write("HSET", state, ["a", "z", "b", "new"])])

    assert bench.client.hgetall(keys.was("j", state)) == {b"": b"x"}
    assert int(bench.client.hget(keys.savepoint("j"), "bytes")) == 0


def test_too_much_change_gives_the_savepoint_up_and_the_job_goes_on(make: Callable[..., Bench]) -> None:
    bench = make(limits=Limits(savepoint_bytes=500))
    hand, store, state = bench.worker(), a_store(bench), a_state(bench, 3)
    hand.commit(writes=[Write("HSET", state, ["a", "x" * 1000, "b", "y"])])
    cut = store.cut("s")

    hand.commit(writes=[Write("HSET", state, ["a", "changed"])])
    before = bench.client.hlen(keys.was("j", state))
    hand.commit(writes=[Write("HSET", state, ["b", "changed"])])

    assert bench.client.hlen(keys.was("j", state)) == before
    with pytest.raises(SavepointLost, match="given up: more than"):
        store.hold(cut)
    store.let_go(cut)
    assert kept_keys(bench) == []
    assert bench.client.hmget(state, "a", "b") == [b"changed", b"changed"]


def test_one_savepoint_at_a_time_and_a_second_one_is_told_the_name_of_the_first(bench: Bench) -> None:
    store = a_store(bench)
    store.cut("first")

    with pytest.raises(SavepointError, match="busy: its savepoint first"):
        store.cut("second")


def test_a_dead_exporter_is_tidied_up_behind_and_cannot_go_on(bench: Bench) -> None:
    store = a_store(bench)
    dead = store.cut("first")
    assert not store.tidy()
    bench.client.hset(keys.savepoint("j"), "until", 0)

    living = store.cut("second")

    assert living.epoch == dead.epoch + 1
    with pytest.raises(SavepointLost, match="its exporter said nothing"):
        store.hold(dead)
    store.let_go(dead)
    store.hold(living)


def test_a_savepoint_may_stop_its_job_at_the_very_instant_of_the_cut(bench: Bench) -> None:
    hand = bench.worker()

    a_store(bench).cut("s", JobState.CANCELLED)

    assert hand.commit(writes=[Write("HSET", a_state(bench, 3), ["a", 1])]) == Refused(Refusal.STOPPED)
    record = bench.jobs.read("j")
    assert (record.state, record.reason) == (JobState.CANCELLED, "stopped with the savepoint s")
    with pytest.raises(JobStateError, match="cannot be stopped"):
        a_store(make_free(bench)).cut("t", JobState.CANCELLED)


def test_a_job_with_anything_in_flight_is_not_suspended_and_nothing_is_changed(bench: Bench) -> None:
    bench.lane().append(1, a_batch("a", "b"))
    before = bench.client.hgetall(keys.job("j"))

    with pytest.raises(NotQuiet):
        a_store(bench).cut("s", JobState.SUSPENDED)

    assert bench.client.hgetall(keys.job("j")) == before
    assert kept_keys(bench) == []


def test_one_with_nothing_in_flight_is_suspended_at_the_cut(bench: Bench) -> None:
    hand = bench.worker()

    a_store(bench).cut("s", JobState.SUSPENDED)

    assert hand.commit(writes=[Write("HSET", a_state(bench, 3), ["a", 1])]) == Refused(Refusal.STOPPED)
    record = bench.jobs.read("j")
    assert (record.state, record.reason) == (JobState.SUSPENDED, "suspended with the savepoint s")


def test_a_draining_job_is_not_suspended(bench: Bench) -> None:
    bench.jobs.transition("j", JobState.DRAINING)
    with pytest.raises(JobStateError, match="is draining"):
        a_store(bench).cut("s", JobState.SUSPENDED)


def make_free(bench: Bench) -> Bench:
    bench.client.hset(keys.savepoint("j"), "until", 0)
    a_store(bench).tidy()
    return bench


def test_no_savepoint_of_a_job_that_is_not_there(bench: Bench) -> None:
    bench.jobs.erase("j")

    with pytest.raises(UnknownJob):
        a_store(bench).cut("s")


def test_ids_seen_since_the_cut_are_told_from_those_before_even_in_the_same_millisecond(bench: Bench) -> None:
    lane = bench.lane()
    lane.append(1, a_batch("x"), ids=["one"])
    bench.client.hset(keys.job("j"), "cut_at", 2**42)

    cut = a_store(bench).cut("s")
    lane.append(2, a_batch("y"), ids=["two"])

    groups = [group for group in range(256) if bench.client.exists(keys.ids("j", "lines", group))]
    found = [pair for group in groups for pair in a_store(bench).ids_at_cut("lines", group, cut)]
    assert cut.at_ms == 2**42
    assert len(found) == 1


def test_a_full_redis_refuses_the_cut_and_lets_commits_keep_what_they_change(
    bench: Bench, full_memory: Callable[[], None]
) -> None:
    hand, store, state = bench.worker(), a_store(bench), a_state(bench, 3)
    hand.commit(writes=[Write("HSET", state, ["a", 1])])
    cut = store.cut("s")
    bench.lane().append(1, a_batch("x"))
    full_memory()

    hand.commit(Position("2-0"), writes=[Write("HSET", state, ["a", 2])])

    assert exported(store.at_cut([state], "h")) == {b"a": b"1"}
    assert [entry[0] for entry in store.in_flight(*ENTRY)] == []
    store.let_go(cut)
    before = bench.snapshot()
    with pytest.raises(StoreError):
        store.cut("t")
    assert bench.snapshot() == before


def test_the_facts_of_the_cut_are_copied(bench: Bench) -> None:
    lane = bench.lane()
    lane.append(1, a_batch("x", "y"))
    store = a_store(bench)
    cut = store.cut("s")
    lane.append(3, a_batch("z"))

    facts = {(key, field): value for key, field, value in store.facts()}

    assert facts["log:0.0", b"1"] == b"2"
    assert facts["meta:0.0", b"head"] == b"2"
    assert store.record()["state"] == b"running"
    assert len(list(store.in_flight(*ENTRY))) == 1
    assert list(store.in_flight(*KEYED)) == []
    assert cut.at_ms > 0
