"""Appending: the order of its checks, the dedup log, other batch boundaries, two attempts at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from bench import ENTRY, Bench, a_batch, a_job_id
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.codec import decode_batch, encode_batch
from pipeline.errors import (
    InboxClosed,
    InboxFull,
    StaleSender,
    StoreError,
    StoreFull,
    TailLost,
    UnknownJob,
    UnknownSender,
)
from pipeline.lifecycle import JobState
from pipeline.messages import Data, EndOfInput
from pipeline.records import Batch
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.connection import connect
from pipeline.store.payloads import encode_faulty
from pipeline.store.scripts import Scripts


def test_a_batch_is_numbered_and_rings_once(bench: Bench) -> None:
    bench.assign()
    bench.client.delete(keys.queue("j", *ENTRY))
    bench.client.hdel(keys.meta("j", *ENTRY), "ring")
    lane = bench.lane()

    lane.append(1, a_batch("a", "b"))
    lane.append(3, a_batch("c"))

    assert bench.headers() == [Data("1", 1, 2, None, 1), Data("1", 3, 1, None, 1)]
    assert [entry.id for entry in bench.entries()] == ["1-0", "3-0"]
    assert bench.values() == ["a", "b", "c"]
    assert bench.log()["1"] == "3"
    assert bench.tickets() == 1
    assert lane.taken == 3


def test_a_partition_that_nobody_owns_takes_data_and_rings_nobody(bench: Bench) -> None:
    bench.lane().append(1, a_batch("a"))

    assert bench.values() == ["a"]
    assert bench.ring() == ""


def test_an_entry_without_payload_bytes_of_text_survives_as_it_is(bench: Bench) -> None:
    value = bytes(range(256)) * 2

    bench.lane().append(1, a_batch(value, "\0", b"\xff\x00"))

    assert bench.values() == [value, "\0", b"\xff\x00"]


# The order of checks: each pair shows that the earlier one wins.


def append_raw(bench: Bench, sender: int, epoch: int, first: int, count: int, place: Any = ENTRY) -> list[int]:
    limits = bench.limits
    names = [keys.inbox(bench.job, *place), keys.meta(bench.job, *place), keys.log(bench.job, *place)]
    payload = encode_batch(a_batch(*range(count)))
    args = [sender, epoch, first, count, payload, "", limits.inbox_records, limits.inbox_bytes]
    return bench.scripts.run("append", [*names, keys.job(bench.job)], args)


def make_full(bench: Bench) -> None:
    bench.client.hset(keys.meta(bench.job, *ENTRY), "head", bench.limits.inbox_records + 100)


@pytest.mark.parametrize("obstacle", ["draining", "closed", "full", "gate"])
def test_a_duplicate_is_taken_whatever_else_holds(bench: Bench, obstacle: str) -> None:
    """A1, A11: a retry must never be refused for a reason that came up after its first attempt."""
    lane = bench.lane()
    lane.append(1, a_batch(*range(10)))
    before = bench.entries()
    match obstacle:
        case "draining":
            bench.jobs.transition("j", JobState.DRAINING)
        case "closed":
            bench.leadership.close_source("j", bench.token, bench.plan, "lines")
            before = bench.entries()
        case "full":
            make_full(bench)
        case "gate":
            bench.leadership.set_gate("j", bench.token, "closed")

    again = bench.lane()
    again.append(1, a_batch(*range(10)))

    assert append_raw(bench, 1, 0, 4, 7) == [2, 10]
    assert again.taken == 10
    assert bench.entries() == before
    assert bench.meta()["duplicate"] == "7"


def test_an_unknown_sender_is_refused_before_anything_else_and_is_not_made(bench: Bench) -> None:
    """B2."""
    bench.leadership.close_source("j", bench.token, bench.plan, "lines")
    before = bench.snapshot()

    assert append_raw(bench, 77, 0, 1, 1) == [-1, 0]
    assert bench.snapshot() == before


def test_an_expired_sender_gets_a_typed_error_and_is_not_created_anew(bench: Bench) -> None:
    """B2."""
    lane = bench.lane()
    lane.append(1, a_batch("a"))
    bench.client.hdel(keys.log("j", *ENTRY), "1", "e:1")

    with pytest.raises(UnknownSender, match="0/lines/a") as caught:
        lane.append(2, a_batch("b"))

    assert caught.value.hint
    assert bench.log() == {}
    assert bench.values() == ["a"]


def test_a_zombie_is_told_so_even_for_a_duplicate(bench: Bench) -> None:
    old = bench.lane("p", exclusive=True)
    old.append(1, a_batch("a"))
    bench.lane("p", exclusive=True)

    assert append_raw(bench, 1, 1, 1, 1) == [-2, 1]
    with pytest.raises(StaleSender):
        old.append(2, a_batch("b"))
    assert bench.values() == ["a"]


def test_closed_comes_before_full_and_full_before_a_gap(make: Callable[..., Bench]) -> None:
    bench = make(limits=Limits(inbox_records=5))
    bench.lane().append(1, a_batch(0))
    make_full(bench)

    assert append_raw(bench, 1, 0, 9, 1) == [-4, 1]
    bench.leadership.close_source("j", bench.token, bench.plan, "lines")
    assert append_raw(bench, 1, 0, 9, 1) == [-3, 1]


@pytest.mark.parametrize("state", [state for state in JobState if state is not JobState.RUNNING])
def test_a_job_that_does_not_run_takes_no_new_number(bench: Bench, state: JobState) -> None:
    lane = bench.lane()
    bench.client.hset(keys.job("j"), "state", state.value)

    with pytest.raises(InboxClosed, match="no new input"):
        lane.append(1, a_batch("a"))

    assert bench.entries() == []


def test_a_closed_gate_is_a_full_inbox(bench: Bench) -> None:
    """A6: appends stop before the memory is full."""
    lane = bench.lane()
    bench.leadership.set_gate("j", bench.token, "closed")

    with pytest.raises(InboxFull):
        lane.append(1, a_batch("a"))

    assert bench.entries() == []


def test_an_inbox_is_full_by_bytes_too(make: Callable[..., Bench]) -> None:
    bench = make(limits=Limits(inbox_bytes=1_000))
    lane = bench.lane()
    lane.append(1, a_batch("x" * 1_200))

    with pytest.raises(InboxFull):
        lane.append(2, a_batch("y"))

    assert len(bench.entries()) == 1


def test_a_gap_sends_the_sender_back(bench: Bench) -> None:
    lane = bench.lane()
    lane.append(1, a_batch("a"))

    assert append_raw(bench, 1, 0, 3, 2) == [-6, 1]
    with pytest.raises(StoreError, match="gap"):
        lane.append(3, a_batch("c"))
    assert bench.values() == ["a"]


def test_numbers_that_the_job_has_lost_are_an_error_and_never_used_twice(bench: Bench) -> None:
    """A4: Redis is behind what the sender remembers."""
    lane = bench.lane()
    lane.append(1, a_batch("a", "b"))
    bench.client.hset(keys.log("j", *ENTRY), "1", "1")

    with pytest.raises(TailLost, match=r"Redis has 1 \(1 record\)"):
        lane.append(3, a_batch("c"))


def test_a_batch_known_in_part_is_not_cut_by_the_script(bench: Bench) -> None:
    """B1: the answer names the last number, and the sender cuts."""
    bench.lane().append(1, a_batch(0, 1, 2))

    assert append_raw(bench, 1, 0, 2, 4) == [3, 3]
    assert len(bench.entries()) == 1


def test_a_sender_that_is_overtaken_by_another_attempt_goes_on_behind_it(bench: Bench) -> None:
    """B1: two attempts on one split; the slower one finds that a part of its batch is known."""
    slow, fast = bench.lane(), bench.lane()
    fast.append(1, a_batch(0, 1, 2))

    slow.append(1, a_batch(0, 1, 2, 3, 4))

    assert bench.values() == [0, 1, 2, 3, 4]
    assert slow.taken == 5
    slow.finish(5)


def test_an_append_to_a_removed_job_is_refused_and_creates_nothing(bench: Bench) -> None:
    lane = bench.lane()
    lane.append(1, a_batch("a"))
    bench.jobs.erase("j")

    with pytest.raises(UnknownJob):
        lane.append(2, a_batch("b"))
    with pytest.raises(UnknownJob):
        bench.lane("b")
    with pytest.raises(UnknownJob):
        lane.finish(1)
    with pytest.raises(UnknownJob):
        bench.feed().complete(0)

    assert bench.snapshot() == {}


def test_a_full_inbox_is_a_typed_error_after_the_timeout(make: Callable[..., Bench]) -> None:
    bench = make(limits=Limits(inbox_records=8))
    lane = bench.lane(full_timeout_seconds=0.02)

    with pytest.raises(InboxFull, match="stayed full") as caught:
        lane.append(1, a_batch(*range(20)))

    assert caught.value.hint
    assert bench.values() == list(range(8))
    assert lane.taken == 8


def test_a_sender_goes_on_where_it_stopped_when_the_inbox_has_room(make: Callable[..., Bench]) -> None:
    bench = make(limits=Limits(inbox_records=8))
    lane = bench.lane(full_timeout_seconds=0.0)
    with pytest.raises(InboxFull):
        lane.append(1, a_batch(*range(12)))
    hand = bench.worker()
    hand.work()

    lane.append(1, a_batch(*range(12)))

    assert bench.values() == [8, 9, 10, 11]


def test_a_large_batch_is_cut_into_entries_below_the_limit(make: Callable[..., Bench]) -> None:
    bench = make(limits=Limits(entry_bytes=2_000))

    bench.lane().append(1, a_batch(*["x" * 300] * 40))

    sizes = [len(entry.payload) for entry in bench.entries()]
    assert max(sizes) <= 2_000
    assert len(sizes) < 20
    assert len(bench.values()) == 40


def test_a_redis_without_memory_takes_nothing_and_changes_nothing(
    bench: Bench, full_memory: Callable[[], None]
) -> None:
    """A6: an append begins with a command that grows, so it is refused before anything is written."""
    lane = bench.lane(full_timeout_seconds=0.0)
    lane.append(1, a_batch("a"))
    full_memory()
    before = bench.snapshot()

    with pytest.raises(StoreFull):
        append_raw(bench, 1, 0, 2, 1)
    assert append_raw(bench, 1, 0, 1, 1) == [2, 1]
    with pytest.raises(InboxFull):
        lane.append(2, a_batch("b"))

    assert bench.snapshot() == before


def test_no_number_is_taken_after_the_end_of_input(bench: Bench) -> None:
    """A11."""
    lane = bench.lane()
    lane.append(1, a_batch("a"))

    assert bench.leadership.close_source("j", bench.token, bench.plan, "lines") == 1
    assert bench.leadership.close_source("j", bench.token, bench.plan, "lines") == 0

    with pytest.raises(InboxClosed):
        lane.append(2, a_batch("b"))
    lane.append(1, a_batch("a"))
    assert bench.headers() == [Data("1", 1, 1, None, 1), EndOfInput("source")]
    assert [entry.id for entry in bench.entries()] == ["1-0", "2-0"]
    assert bench.facts().closed


def test_the_end_of_input_stands_behind_the_data_of_every_partition(make: Callable[..., Bench]) -> None:
    """A11."""
    bench = make(partitions=3)
    for split in range(6):
        bench.lane(str(split)).append(1, a_batch(split))

    assert bench.leadership.close_source("j", bench.token, bench.plan, "lines") == 3

    for partition in range(3):
        kinds = [type(header) for header in bench.headers((0, partition))]
        assert kinds == [Data, Data, EndOfInput]


# Other batch boundaries and attempts at once.


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), total=st.integers(1, 30))
def test_any_cutting_with_any_resends_gives_each_record_once_in_order(
    redis_url: str, data: st.DataObject, total: int
) -> None:
    """A1, B1: retries may cut the records otherwise than the first attempt did."""
    bench = Bench(redis_url, a_job_id())
    lane, sent = bench.lane(), 0

    while sent < total:
        first = data.draw(st.integers(1, sent + 1))
        last = data.draw(st.integers(first, total))
        if data.draw(st.booleans()):
            lane = bench.lane()
        lane.append(first, a_batch(*range(first, last + 1)))
        sent = max(sent, last)

    assert bench.values() == list(range(1, total + 1))
    assert lane.taken == total
    numbers = [(header.first, header.count) for header in bench.headers()]
    assert [first for first, _ in numbers] == [1 + sum(count for _, count in numbers[:i]) for i in range(len(numbers))]
    bench.close()


def test_two_attempts_at_once_on_one_split_double_nothing(bench: Bench) -> None:
    """A1: a Spark task and its speculative copy."""
    total, errors = 400, []

    def attempt(step: int) -> None:
        try:
            with connect(bench.url) as client:
                lane = bench.feed(scripts=Scripts(client)).lane("split")
                for first in range(1, total + 1, step):
                    lane.append(first, a_batch(*range(first, min(total, first + step - 1) + 1)))
                lane.finish(total)
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=attempt, args=(step,)) for step in (7, 13, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert errors == []
    assert bench.values() == list(range(1, total + 1))
    assert bench.jobs.facts("j").finished_splits == {"lines": 1}


# Records that cannot be stored.


def test_records_that_cannot_be_stored_become_faults_and_keep_their_numbers() -> None:
    batch = Batch(["ok", object(), "x" * 5000, 2**70, "\ud800", "end"], faults={0: "bad line"})

    stored = decode_batch(encode_faulty(batch, 1000))

    assert len(stored) == 6
    assert stored.values[0] == "ok"
    assert stored.values[5] == "end"
    assert sorted(stored.faults) == [0, 1, 2, 3, 4]
    assert stored.faults[0] == "bad line"
    assert "limit of 1000" in stored.faults[2]
    assert all(isinstance(value, str) and len(value) <= 1000 for value in stored.values)


def test_a_fault_whose_reason_is_no_proper_text_can_be_stored() -> None:
    stored = decode_batch(encode_faulty(Batch(["a"], faults={0: "bad \udcff byte"}), 1000))

    assert stored.faults == {0: "bad \\udcff byte"}


def test_an_unstorable_record_ends_in_the_inbox_as_a_fault(bench: Bench) -> None:
    bench.lane().append(1, a_batch("a", object(), "c"))

    (entry,) = bench.entries()
    batch = decode_batch(entry.payload)
    assert batch.values[0] == "a"
    assert batch.values[2] == "c"
    assert list(batch.faults) == [1]
