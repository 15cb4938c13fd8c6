"""Commits: what is written together, each refusal, FULL and its waiters, accounting, binary safety."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from bench import ENTRY, KEYED, Bench, Hand, a_batch, after, values_of

from pipeline.codec import encode_batch, state_field, timer_member
from pipeline.errors import StoreError
from pipeline.lifecycle import JobState
from pipeline.messages import Data, EndOfInput, Watermark
from pipeline.positions import START, Position
from pipeline.records import Timer
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.commits import (
    Counts,
    Entries,
    Idle,
    Kept,
    Output,
    Refusal,
    Refused,
    Target,
    Write,
    Yielded,
)


def data_output(*values: Any, watermark: int | None = None) -> Output:
    return Output("D", len(values), watermark, encode_batch(a_batch(*values)))


def to_keyed(bench: Bench, *values: Any) -> dict[Target, list[Output]]:
    return {Target.partition(bench.job, *KEYED): [data_output(*values)]}


def to_out(bench: Bench, *values: Any) -> dict[Target, list[Output]]:
    return {Target.stream(bench.job, "out"): [data_output(*values)]}


def fed(bench: Bench, *values: Any) -> Hand:
    """An owner of the entry partition whose inbox holds the values."""
    bench.lane().append(1, a_batch(*values))
    return bench.worker()


# Applied.


def test_a_commit_writes_state_timers_outputs_log_counts_and_position_together(bench: Bench) -> None:
    hand = fed(bench, "a", "b")
    size = len(bench.entries()[0].payload)
    state, timers = keys.state("j", 0, 3), keys.timers("j", 0, "op", 3)
    timer = Timer("op", "k", 5_000)

    reply = hand.commit(
        Position("3-0"),
        released_bytes=size,
        counts=Counts(taken=2, emitted=1, filtered=1, late=3, dead=4),
        meta={"watermark": 99, "done": 1},
        log={"w:1": 99},
        writes=[
            Write("HSET", state, [state_field("op", "k"), b"\x00\xff"]),
            Write("ZADD", timers, [timer.due, timer_member(timer)]),
            Write("XADD", keys.dead("j"), ["operator", "op", "payload", b"\x00\xff"]),
        ],
        outputs=to_keyed(bench, "A"),
    )

    assert reply == Kept()
    assert bench.client.hgetall(state) == {state_field("op", "k"): b"\x00\xff"}
    assert bench.client.zrange(timers, 0, -1, withscores=True) == [(timer_member(timer), 5_000.0)]
    assert bench.client.xrange(keys.dead("j"))[0][1] == {b"operator": b"op", b"payload": b"\x00\xff"}
    assert bench.headers(KEYED) == [Data("0.0", 1, 1, None, 1)]
    assert bench.values(KEYED) == ["A"]
    assert bench.log(KEYED) == {"0.0": "1"}
    assert bench.log()["w:1"] == "99"
    facts = bench.facts()
    assert facts.position == Position("3-0")
    assert facts.at_end
    assert facts.done
    counts = (facts.taken, facts.emitted, facts.filtered, facts.late, facts.dead)
    assert counts == (2, 1, 1, 3, 4)
    assert (facts.backlog, facts.backlog_bytes) == (0, 0)
    assert bench.entries() == []


def test_removals_are_written_and_empty_writes_do_no_harm(bench: Bench) -> None:
    hand = fed(bench, "a")
    state, timers = keys.state("j", 0, 3), keys.timers("j", 0, "op", 3)
    bench.client.hset(state, mapping={"a": 1, "b": 2})
    bench.client.zadd(timers, {"t": 1, "u": 2})

    reply = hand.commit(
        writes=[
            Write("HDEL", state, ["a"]),
            Write("ZREM", timers, ["t"]),
            Write("HSET", keys.state("j", 0, 4), []),
        ]
    )

    assert reply == Kept()
    assert bench.client.hgetall(state) == {b"b": b"2"}
    assert bench.client.zrange(timers, 0, -1) == [b"u"]
    assert not bench.client.exists(keys.state("j", 0, 4))


def test_counts_add_up_over_commits(bench: Bench) -> None:
    hand = fed(bench, *range(10))

    for record in range(1, 10):
        hand.commit(Position("1-0", record), counts=Counts(taken=1, emitted=2, filtered=3))
    hand.commit(Position("11-0"), counts=Counts(taken=1))

    facts = bench.facts()
    assert (facts.taken, facts.emitted, facts.filtered) == (10, 18, 27)


def test_a_step_may_end_inside_an_entry_and_the_next_owner_starts_there(bench: Bench) -> None:
    """A9: the position is (entry, record), so one slow record never holds a thousand."""
    hand = fed(bench, *range(10))

    hand.commit(Position("1-0", 4), taken=4)

    assert bench.facts().backlog == 6
    assert bench.values() == list(range(10))
    successor = bench.worker(nonce="y")
    assert successor.position == Position("1-0", 4)
    assert values_of(successor.fetch()) == list(range(10))


def test_ids_count_records_so_the_backlog_is_a_subtraction(bench: Bench) -> None:
    lane = bench.lane()
    for first, count in ((1, 3), (4, 1), (5, 7)):
        lane.append(first, a_batch(*range(count)))
    bench.leadership.close_source("j", bench.token, bench.plan, "lines")

    assert [entry.id for entry in bench.entries()] == ["1-0", "4-0", "5-0", "12-0"]
    assert bench.facts().backlog == 11
    hand = bench.worker()
    hand.commit(Position("4-0"), taken=3)
    assert bench.facts().backlog == 8
    hand.commit(Position("12-0"), taken=8)
    assert bench.facts().backlog == 0
    assert not bench.facts().at_end
    hand.commit(Position("12-1"))
    assert bench.facts().at_end


def test_released_bytes_return_to_zero_when_the_inbox_is_drained(bench: Bench) -> None:
    lane = bench.lane()
    for first in range(1, 50, 7):
        lane.append(first, a_batch(*["x" * first] * 7))
    hand = bench.worker()
    total = sum(len(entry.payload) for entry in bench.entries())
    assert bench.facts().backlog_bytes == total

    for entry in hand.fetch():
        hand.commit(Position(after(entry)), released_bytes=len(entry.payload))

    assert bench.facts().backlog_bytes == 0
    assert bench.client.xlen(keys.inbox("j", *ENTRY)) == 0


def test_outputs_are_numbered_without_gaps_over_commits_and_owners(bench: Bench) -> None:
    hand = fed(bench, *range(4))
    hand.commit(Position("1-0", 1), outputs=to_keyed(bench, "a", "b"))
    hand = bench.worker(nonce="y")
    target = Target.partition("j", *KEYED)

    hand.commit(
        Position("5-0"),
        outputs={target: [data_output("c", watermark=7), Output("W", watermark=9), data_output("d"), Output("E")]},
    )

    assert bench.headers(KEYED) == [
        Data("0.0", 1, 2, None, 1),
        Data("0.0", 3, 1, 7, 1),
        Watermark("0.0", 9),
        Data("0.0", 4, 1, None, 1),
        EndOfInput("0.0"),
    ]
    assert [entry.id for entry in bench.entries(KEYED)] == ["1-0", "3-0", "4-0", "4-1", "5-0"]
    assert bench.facts(KEYED).backlog == 4


def test_more_than_four_thousand_changed_keys_fit_into_one_commit(bench: Bench) -> None:
    """A7: `unpack` takes less than 8,000 values."""
    hand = fed(bench, "a")
    state, timers = keys.state("j", 0, 3), keys.timers("j", 0, "op", 3)
    pairs = [item for number in range(9_001) for item in (f"k{number}", number)]
    scores = [item for number in range(9_001) for item in (number, f"t{number}")]

    assert hand.commit(writes=[Write("HSET", state, pairs), Write("ZADD", timers, scores)]) == Kept()
    assert bench.client.hlen(state) == 9_001
    assert bench.client.hget(state, "k9000") == b"9000"
    assert bench.client.zscore(timers, "t9000") == 9_000

    assert hand.commit(writes=[Write("HDEL", state, pairs[::2]), Write("ZREM", timers, scores[1::2])]) == Kept()
    assert not bench.client.exists(state, timers)


def test_state_and_payloads_are_safe_for_every_byte(bench: Bench) -> None:
    """A7: nothing of a user's bytes is read inside a script."""
    every = bytes(range(256))
    hand = fed(bench, every)
    state = keys.state("j", 0, 7)

    hand.commit(
        Position("2-0"),
        writes=[Write("HSET", state, [every, every[::-1]])],
        outputs=to_keyed(bench, every, b"\0", b"\xff"),
    )

    assert bench.client.hget(state, every) == every[::-1]
    assert bench.values(KEYED) == [every, b"\0", b"\xff"]


def test_what_a_script_reads_as_msgpack_is_our_own_words_and_numbers(bench: Bench) -> None:
    """A7: Redis 6.2 reads no bytes in it, and large numbers wrong; a user's bytes stand beside it."""
    hand, seen = fed(bench, "a"), []
    run = bench.scripts.run

    def watched(name: str, names: Any, args: Any) -> Any:
        seen.extend(part for part in args if type(part) is bytes and part)
        return run(name, names, args)

    bench.scripts.run = watched  # type: ignore[method-assign]
    hand.commit(Position("2-0"), writes=[Write("HSET", keys.state("j", 0, 1), [b"\xc4\xff", 2**60, "ü", b"x" * 300])])

    heads, values = seen
    assert msgspec.msgpack.decode(heads) == [["HSET", 6, False, [2, 19, 2, 300]]]
    assert values == b"\xc4\xff1152921504606846976\xc3\xbc" + b"x" * 300
    assert bench.client.hgetall(keys.state("j", 0, 1)) == {
        b"\xc4\xff": b"1152921504606846976",
        "ü".encode(): b"x" * 300,
    }


# What is read with it.


def test_a_commit_reads_on_by_records_and_not_by_entries(bench: Bench) -> None:
    lane = bench.lane()
    for first in range(1, 31, 3):
        lane.append(first, a_batch(first, first + 1, first + 2))
    hand = bench.worker()

    reply = hand.commit(mode="more", read_records=10)

    assert isinstance(reply, Entries)
    assert values_of(reply.entries) == list(range(1, 13))
    assert bench.ring() == "1"


def test_a_commit_reads_no_more_than_the_bytes_of_a_step_plus_a_page(make: Callable[..., Bench]) -> None:
    bench = make(limits=Limits(step_bytes=20_000))
    lane = bench.lane()
    for first in range(1, 101):
        lane.append(first, a_batch("x" * 2_000))
    hand = bench.worker()

    entries = hand.fetch()

    assert 20_000 <= sum(len(entry.payload) for entry in entries) < 20_000 + 16 * 2_100
    assert [after(entry) for entry in entries[:-1]] == [entry.id for entry in entries[1:]]


def test_many_small_entries_are_read_over_several_pages(make: Callable[..., Bench]) -> None:
    bench = make(limits=Limits(step_bytes=1_000))
    lane = bench.lane()
    for first in range(1, 101):
        lane.append(first, a_batch("x" * 12))
    hand = bench.worker()

    entries = hand.fetch()

    assert len(entries) > 16
    assert [entry.id for entry in entries] == [f"{number}-0" for number in range(1, len(entries) + 1)]


def test_control_entries_are_read_in_their_place(bench: Bench) -> None:
    hand = fed(bench, "a", "b")
    bench.leadership.close_source("j", bench.token, bench.plan, "lines")

    entries = hand.fetch(read_records=2)

    assert [entry.id for entry in entries] == ["1-0"]
    entries = hand.commit(Position("3-0"), "more", read_records=1)
    assert isinstance(entries, Entries)
    assert entries.entries[0].id == "3-0"
    assert entries.entries[0].payload == b""
    assert hand.commit(Position("3-1"), "more") == Idle()


# Refused.


def refused_without_a_trace(bench: Bench, why: Refusal, call: Callable[[], Any]) -> Refused:
    before = bench.snapshot()
    reply = call()
    assert isinstance(reply, Refused)
    assert reply.why is why
    assert bench.snapshot() == before
    return reply


def test_an_owner_without_the_token_changes_nothing(bench: Bench) -> None:
    """A4: term and nonce are compared for equality."""
    hand = fed(bench, "a")
    bench.assign(nonce="y")

    refused_without_a_trace(
        bench, Refusal.FENCED, lambda: hand.commit(Position("2-0"), "yield", outputs=to_keyed(bench, "A"))
    )


def test_the_same_term_with_another_nonce_is_fenced(bench: Bench) -> None:
    """A4: after a lost tail two owners may have the same term."""
    hand = fed(bench, "a")
    bench.client.hset(keys.meta("j", *ENTRY), "token", "1:other")

    refused_without_a_trace(bench, Refusal.FENCED, lambda: hand.commit(Position("2-0")))


def test_a_commit_sent_twice_is_applied_once(bench: Bench) -> None:
    """B3: applied, the reply lost, sent again: moved on, which is not fenced."""
    hand = fed(bench, "a")
    hand.commit(Position("2-0"), taken=1, outputs=to_keyed(bench, "A"))

    refused_without_a_trace(
        bench,
        Refusal.MOVED_ON,
        lambda: hand.commit(Position("2-0"), start=START, taken=1, outputs=to_keyed(bench, "A")),
    )
    assert bench.values(KEYED) == ["A"]


def test_a_commit_from_another_record_of_the_same_entry_has_moved_on(bench: Bench) -> None:
    hand = fed(bench, "a", "b", "c")
    hand.commit(Position("1-0", 2))

    refused_without_a_trace(bench, Refusal.MOVED_ON, lambda: hand.commit(Position("2-0"), start=Position("1-0", 1)))


def test_a_commit_under_an_old_table_is_refused(bench: Bench) -> None:
    hand = fed(bench, "a")
    bench.client.hset(keys.job("j"), "table", 2)

    refused_without_a_trace(bench, Refusal.OLD_TABLE, lambda: hand.commit(Position("2-0")))
    assert hand.commit(Position("2-0"), table=2) == Kept()


def test_fenced_comes_before_moved_on_and_moved_on_before_an_old_table(bench: Bench) -> None:
    """B3."""
    hand = fed(bench, "a")
    elsewhere = Position("9-0")
    bench.client.hset(keys.job("j"), "table", 2)

    refused_without_a_trace(bench, Refusal.MOVED_ON, lambda: hand.commit(elsewhere, start=elsewhere))
    bench.assign(nonce="y")
    refused_without_a_trace(bench, Refusal.FENCED, lambda: hand.commit(elsewhere, start=elsewhere))


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED, JobState.PUBLISHING])
def test_a_job_that_does_not_run_takes_no_commit(bench: Bench, state: JobState) -> None:
    hand = fed(bench, "a")
    bench.jobs.transition("j", state)

    refused_without_a_trace(bench, Refusal.STOPPED, lambda: hand.commit(Position("2-0")))


def test_a_draining_job_takes_commits(bench: Bench) -> None:
    hand = fed(bench, "a")
    bench.jobs.transition("j", JobState.DRAINING)

    assert hand.commit(Position("2-0")) == Kept()


@pytest.mark.parametrize("command", ["HSET", "HDEL", "HINCRBY", "ZADD", "ZREM", "XADD"])
def test_a_key_of_another_type_among_the_writes_is_named_and_nothing_is_written(bench: Bench, command: Any) -> None:
    """A7: a script that fails half-way has half committed."""
    hand = fed(bench, "a")
    bench.client.set(keys.state("j", 0, 9), "not ours")
    good = Write("HSET", keys.state("j", 0, 1), ["k", "v"])

    reply = refused_without_a_trace(
        bench,
        Refusal.FOREIGN_KEY,
        lambda: hand.commit(Position("2-0"), writes=[good, Write(command, keys.state("j", 0, 9), ["1", "2"])]),
    )

    assert reply.detail == keys.state("j", 0, 9)


def test_a_number_that_is_none_is_not_added_to_and_nothing_is_written(bench: Bench) -> None:
    hand = fed(bench, "a")
    bench.client.hset(keys.meta("j", *ENTRY), "held", "many")
    good = Write("HSET", keys.state("j", 0, 1), ["k", "v"])

    reply = refused_without_a_trace(
        bench,
        Refusal.FOREIGN_KEY,
        lambda: hand.commit(Position("2-0"), writes=[good, Write("HINCRBY", keys.meta("j", *ENTRY), ["held", 1])]),
    )

    assert reply.detail == keys.meta("j", *ENTRY)


def test_numbers_are_added_up_and_taken_away(bench: Bench) -> None:
    hand = fed(bench, "a", "b")
    for at, more in ((2, 5), (3, -2)):
        hand.commit(Position(f"{at}-0"), writes=[Write("HINCRBY", keys.meta("j", *ENTRY), ["held", more])])

    assert bench.client.hget(keys.meta("j", *ENTRY), "held") == b"3"


FOREIGN_PLACES = {
    "own log": keys.log("j", *ENTRY),
    "own waiters": keys.waiting("j", *ENTRY),
    "own queue": keys.queue("j", *ENTRY),
    "inbox": keys.inbox("j", *KEYED),
    "meta": keys.meta("j", *KEYED),
    "log": keys.log("j", *KEYED),
    "queue": keys.queue("j", *KEYED),
}


@pytest.mark.parametrize("place", FOREIGN_PLACES)
def test_a_key_of_another_type_in_the_way_of_the_commit_stops_all_of_it(bench: Bench, place: str) -> None:
    """A7."""
    bench.assign(KEYED)
    hand = fed(bench, "a")
    bench.client.hdel(keys.meta("j", *KEYED), "ring")
    bench.client.delete(FOREIGN_PLACES[place])
    bench.client.set(FOREIGN_PLACES[place], "not ours")

    reply = refused_without_a_trace(
        bench,
        Refusal.FOREIGN_KEY,
        lambda: hand.commit(Position("2-0"), "yield", log={"w:1": 1}, outputs=to_keyed(bench, "A")),
    )

    assert reply.detail == FOREIGN_PLACES[place]


def test_an_inbox_of_another_type_is_an_error_that_writes_nothing(bench: Bench) -> None:
    """A7: for an append."""
    lane = bench.lane()
    bench.client.set(keys.inbox("j", *ENTRY), "not ours")
    before = bench.snapshot()

    with pytest.raises(StoreError, match="WRONGTYPE"):
        lane.append(1, a_batch("a"))

    assert bench.snapshot() == before


# FULL and the waiters.


def small(make: Callable[..., Bench], **limits: Any) -> tuple[Bench, Hand, Hand]:
    """A bench with owners of both stages, and twenty records for the first of them."""
    bench = make(limits=Limits(**{"inbox_records": 10, **limits}))
    bench.client.hset(keys.meta("j", *ENTRY), "head", 0)
    giver, taker = bench.worker(ENTRY), bench.worker(KEYED, worker="v")
    lane = bench.lane()
    for first in range(1, 10):
        lane.append(first, a_batch(first))
    return bench, giver, taker


def test_a_full_inbox_refuses_the_commit_and_writes_only_the_waiter(make: Callable[..., Bench]) -> None:
    """A10: length is compared before appending; one commit may overshoot."""
    bench, giver, _ = small(make)
    assert giver.commit(Position("2-0"), outputs=to_keyed(bench, *range(12))) == Kept()
    before = bench.snapshot()

    reply = giver.commit(Position("3-0"), outputs=to_keyed(bench, "more"))

    assert reply == Refused(Refusal.FULL, keys.inbox("j", *KEYED)) or reply == Refused(
        Refusal.FULL, keys.meta("j", *KEYED)
    )
    after_ = bench.snapshot()
    waiting, meta = keys.waiting("j", *KEYED).encode(), keys.meta("j", *ENTRY).encode()
    assert after_.pop(waiting) == {meta: b"1"}
    assert after_[meta].pop(b"ring") == b"w"
    before[meta].pop(b"ring", None)
    assert after_ == before


def test_waiters_of_another_type_stop_a_commit_that_finds_the_inbox_full(make: Callable[..., Bench]) -> None:
    """A7."""
    bench, giver, _ = small(make)
    assert giver.commit(Position("2-0"), outputs=to_keyed(bench, *range(12))) == Kept()
    bench.client.set(keys.waiting("j", *KEYED), "not ours")

    reply = refused_without_a_trace(
        bench, Refusal.FOREIGN_KEY, lambda: giver.commit(Position("3-0"), outputs=to_keyed(bench, "more"))
    )

    assert reply.detail == keys.waiting("j", *KEYED)


def test_an_inbox_is_full_by_bytes_too(make: Callable[..., Bench]) -> None:
    bench, giver, _ = small(make, inbox_bytes=1_000)
    assert giver.commit(Position("2-0"), outputs=to_keyed(bench, "x" * 1_200)) == Kept()

    reply = giver.commit(Position("3-0"), outputs=to_keyed(bench, "y"))

    assert isinstance(reply, Refused)
    assert reply.why is Refusal.FULL


def test_control_goes_into_a_full_inbox(make: Callable[..., Bench]) -> None:
    """A10: the end of input must not wait for room."""
    bench, giver, _ = small(make)
    giver.commit(Position("2-0"), outputs=to_keyed(bench, *range(12)))
    target = Target.partition("j", *KEYED)

    reply = giver.commit(Position("3-0"), outputs={target: [Output("W", watermark=5), Output("E")]})

    assert reply == Kept()
    assert [type(header) for header in bench.headers(KEYED)] == [Data, Watermark, EndOfInput]


def test_waiters_are_woken_once_and_only_below_the_low_mark(make: Callable[..., Bench]) -> None:
    """A10."""
    bench, giver, taker = small(make)
    giver.commit(Position("2-0"), outputs=to_keyed(bench, *range(12)))
    bench.client.delete(keys.queue("j", *ENTRY))
    giver.commit(Position("3-0"), outputs=to_keyed(bench, "more"))
    assert (bench.tickets(), bench.ring()) == (0, "w")

    taker.commit(Position("1-0", 6))
    assert (bench.tickets(), bench.ring()) == (0, "w")

    taker.commit(Position("1-0", 8))
    assert (bench.tickets(), bench.ring()) == (1, "1")
    assert not bench.client.exists(keys.waiting("j", *KEYED))

    taker.commit(Position("13-0"))
    assert bench.tickets() == 1
    assert giver.commit(Position("3-0"), outputs=to_keyed(bench, "more")) == Kept()


def test_an_append_does_not_ring_an_owner_that_waits_for_a_full_inbox(make: Callable[..., Bench]) -> None:
    """A10: otherwise it would spin."""
    bench, giver, _ = small(make)
    giver.commit(Position("2-0"), outputs=to_keyed(bench, *range(12)))
    giver.commit(Position("3-0"), outputs=to_keyed(bench, "more"))
    bench.client.delete(keys.queue("j", *ENTRY))

    bench.lane().append(10, a_batch(10))

    assert (bench.tickets(), bench.ring()) == (0, "w")


def test_a_waiter_that_got_a_new_owner_is_not_woken_twice(make: Callable[..., Bench]) -> None:
    """A8, A10."""
    bench, giver, taker = small(make)
    giver.commit(Position("2-0"), outputs=to_keyed(bench, *range(12)))
    giver.commit(Position("3-0"), outputs=to_keyed(bench, "more"))
    bench.assign(ENTRY, nonce="y")
    assert bench.tickets() == 1

    taker.commit(Position("13-0"))

    assert bench.tickets() == 1


def test_every_waiter_of_an_inbox_is_woken(make: Callable[..., Bench]) -> None:
    bench = make(partitions=3, limits=Limits(inbox_records=10))
    taker = bench.worker(KEYED)
    for partition in range(3):
        bench.lane(str(partition)).append(1, a_batch(1, 2))
    givers = [bench.worker((0, partition)) for partition in range(3)]
    givers[0].commit(outputs=to_keyed(bench, *range(12)))
    for giver in givers:
        giver.commit(outputs=to_keyed(bench, "x"))
        assert bench.ring(giver.place) == "w"

    taker.commit(Position("13-0"))

    assert [bench.ring(giver.place) for giver in givers] == ["1", "1", "1"]
    assert [bench.tickets(giver.place) for giver in givers] == [1, 1, 1]


# Without memory.


def test_without_memory_commits_go_on_and_free_it(bench: Bench, full_memory: Callable[[], None]) -> None:
    """A6: the commit begins with a trim, so Redis lets all of it through."""
    hand = fed(bench, *range(50))
    bench.assign(KEYED)
    full_memory()

    reply = hand.commit(
        Position("51-0"),
        "yield",
        taken=50,
        writes=[Write("HSET", keys.state("j", 0, 1), ["k", "v"])],
        outputs=to_keyed(bench, "A"),
        log={"w:1": 5},
    )

    assert reply == Yielded()
    assert bench.entries() == []
    assert bench.values(KEYED) == ["A"]
    assert bench.client.hget(keys.state("j", 0, 1), "k") == b"v"


def test_without_memory_a_full_inbox_still_notes_its_waiter(
    make: Callable[..., Bench], full_memory: Callable[[], None]
) -> None:
    """A6, A10."""
    bench, giver, taker = small(make)
    giver.commit(Position("2-0"), outputs=to_keyed(bench, *range(12)))
    full_memory()

    reply = giver.commit(Position("3-0"), outputs=to_keyed(bench, "more"))

    assert isinstance(reply, Refused)
    assert reply.why is Refusal.FULL
    assert bench.ring() == "w"
    taker.commit(Position("13-0"))
    assert bench.ring() == "1"


def test_what_was_read_ahead_and_not_committed_stays_for_the_next_owner(bench: Bench) -> None:
    lane = bench.lane()
    for number, value in enumerate("abc", 1):
        lane.append(number, a_batch(value))
    hand = bench.worker()
    assert len(hand.fetch()) == 3

    hand.commit(Position("2-0"), read_from="4-0", taken=1)

    assert values_of(bench.worker(nonce="y").fetch()) == ["b", "c"]


def test_a_foreign_entry_in_one_target_leaves_the_others_so_that_the_commit_can_be_made_later(bench: Bench) -> None:
    hand = fed(bench, "a")
    outputs = {**to_out(bench, "A"), **to_keyed(bench, "A")}
    (_, inbox) = (target.inbox for target in outputs)
    bench.client.xadd(inbox, {"hello": "world"})

    reply = hand.commit(Position("2-0"), outputs=outputs)

    assert isinstance(reply, Refused)
    assert reply.detail == inbox
    assert bench.client.xlen(keys.out("j", "out")) == 0
    bench.client.delete(inbox)
    assert hand.commit(Position("2-0"), outputs=outputs) == Kept()
    assert [bench.client.xlen(target.inbox) for target in outputs] == [1, 1]
