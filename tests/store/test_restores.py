"""Filling a job from a savepoint: in transactions that only its own restore can make."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from bench import Bench, a_plan
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ForeignData, JobStateError, StoreFull
from pipeline.lifecycle import JobState
from pipeline.store import keys
from pipeline.store.ahead import begun, packed
from pipeline.store.connection import connect
from pipeline.store.pairs import Pairs, framed
from pipeline.store.restores import RestoreStore

STATE = keys.state("k", 0, 3)
WORDS = st.binary(max_size=40) | st.integers(1000, 1100).map(bytes)


def fields(count: int, size: int = 1) -> tuple[list[bytes], list[bytes]]:
    return [b"f%d" % number for number in range(count)], [b"v" * size] * count


def pairs(names: list[bytes], values: list[bytes]) -> Pairs:
    return Pairs(*framed(pa.array(names, pa.binary())), *framed(pa.array(values, pa.binary())))


@given(st.lists(WORDS, min_size=1, max_size=20))
def test_a_packed_command_is_what_the_client_library_sends(words: list[bytes]) -> None:
    connection = connect("redis://nowhere:1").connection_pool.make_connection()

    command = [b"HSET", *words]
    assert packed(command) == b"".join(connection.pack_command(*command))


@given(st.lists(st.tuples(WORDS, WORDS), max_size=20), st.data())
def test_pairs_by_column_are_words_as_in_a_packed_command(
    given: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(given)))
    stop = data.draw(st.integers(start, len(given)))
    found = pairs([name for name, _ in given], [value for _, value in given])

    words = [word for pair in given[start:stop] for word in pair]
    part = found.part(start, stop)
    assert b"%b%b\r\n" % (begun([b"HSET", b"key"], len(words)), part) == packed([b"HSET", b"key", *words])
    assert found.size(start, stop) == len(part)


def test_pairs_may_be_a_part_of_larger_arrays() -> None:
    columns = [pa.array(column, pa.binary()) for column in fields(9)]

    found = Pairs(*(piece[4:7] for column in columns for piece in framed(column)))

    assert bytes(found.part(1, 3)) == bytes(pairs(*fields(9)).part(5, 7))


@pytest.mark.parametrize("size", [1, 700, 300_000])
def test_all_that_is_put_is_there_when_it_is_flushed(bench: Bench, size: int) -> None:
    names, values = fields(9_000 if size == 1 else 20, size)
    timers = [(number, b"t%d" % number) for number in range(3_000)]
    with RestoreStore(bench.scripts, "k") as store:
        store.begin(a_plan(), "s")
        store.put_pairs(STATE, pairs(names, values), 0, 3)
        store.put_pairs(STATE, pairs(names, values), 3, len(names))
        for due, member in timers:
            store.put("ZADD", keys.timers("k", 0, "op", 3), (due, member))
        store.put("HSET", keys.senders("k"), ("next", 7))
        store.put("XADD", keys.inbox("k", 0, 0), ["1-0", 2, "h", b"header"])
        store.flush()

        assert bench.client.hgetall(STATE) == dict(zip(names, values, strict=True))
        assert bench.client.zrange(keys.timers("k", 0, "op", 3), 0, -1) == [member for _, member in timers]
        assert bench.client.hgetall(keys.senders("k")) == {b"next": b"7"}
        assert bench.client.xrange(keys.inbox("k", 0, 0)) == [(b"1-0", {b"h": b"header"})]
        store.finish(JobState.RUNNING, {})
    assert bench.jobs.read("k").restoring == ""


def change(bench: Bench) -> None:
    bench.client.hset(keys.job("k"), "reason", "seen")


def take(bench: Bench) -> None:
    bench.client.hset(keys.job("k"), "restoring", "another s")


def remove(bench: Bench) -> None:
    bench.client.delete(keys.job("k"))


def test_a_job_that_is_changed_meanwhile_is_filled_all_the_same(bench: Bench) -> None:
    with RestoreStore(bench.scripts, "k") as store:
        store.begin(a_plan(), "s")
        for number in range(3):
            store.put("HSET", STATE, (b"f%d" % number, b"v"))
            store.flush()
            change(bench)
        store.put("HSET", STATE, (b"last", b"v"))
        store.flush()

    assert set(bench.client.hgetall(STATE)) == {b"f0", b"f1", b"f2", b"last"}


def test_transactions_that_are_on_their_way_when_a_job_is_changed_are_all_done(bench: Bench) -> None:
    names, values = fields(20_000)
    with RestoreStore(bench.scripts, "k") as store:
        store.begin(a_plan(), "s")
        for start in range(0, len(names), 2_000):  # each is a transaction
            store.put_pairs(STATE, pairs(names, values), start, start + 2_000)
            change(bench)
        store.flush()

    assert bench.client.hgetall(STATE) == dict(zip(names, values, strict=True))


@pytest.mark.parametrize("away", [take, remove])
def test_of_transactions_that_are_on_their_way_none_is_done_for_another_ones_job(bench: Bench, away: Any) -> None:
    names, values = fields(20_000)

    def fill() -> None:
        with RestoreStore(bench.scripts, "k") as store:
            store.begin(a_plan(), "s")
            store.put_pairs(STATE, pairs(names, values), 0, 10_000)
            store.flush()
            away(bench)
            store.put_pairs(STATE, pairs(names, values), 10_000, len(names))
            store.flush()

    with pytest.raises(JobStateError, match="was removed, or restored by another process"):
        fill()

    assert bench.client.hlen(STATE) == 10_000


def test_a_restored_job_is_watched_by_no_connection_any_longer(bench: Bench) -> None:
    with RestoreStore(bench.scripts, "k") as store:
        store.begin(a_plan(), "s")
        store.put_pairs(STATE, pairs(*fields(20_000)), 0, 20_000)
        store.finish(JobState.RUNNING, {})
    change(bench)

    pool = bench.client.connection_pool
    connections = [pool.get_connection() for _ in range(6)]
    for connection in connections:
        connection.send_packed_command(connection.pack_commands([("MULTI",), ("EXEC",)]))
    assert [(each.read_response(), each.read_response()) for each in connections] == [(b"OK", [])] * 6
    for connection in connections:
        pool.release(connection)


@pytest.mark.parametrize("away", [take, remove])
@pytest.mark.parametrize("seen", [False, True])
def test_a_job_that_is_another_ones_by_then_gets_nothing_more(bench: Bench, away: Any, seen: bool) -> None:
    with RestoreStore(bench.scripts, "k") as store:
        store.begin(a_plan(), "s")
        if seen:
            store.put("HSET", STATE, (b"before", b"v"))
            store.flush()
        away(bench)
        store.put("HSET", STATE, (b"behind", b"v"))
        with pytest.raises(JobStateError, match="was removed, or restored by another process"):
            store.flush()

    assert set(bench.client.hgetall(STATE)) == ({b"before"} if seen else set())


def test_a_key_that_holds_something_else_is_told(bench: Bench) -> None:
    bench.client.set(STATE, "a stranger's")
    with RestoreStore(bench.scripts, "k") as store:
        store.begin(a_plan(), "s")
        store.put_pairs(STATE, pairs(*fields(10)), 0, 10)
        with pytest.raises(ForeignData):
            store.flush()


def test_a_full_redis_is_told_and_takes_nothing(bench: Bench) -> None:
    with RestoreStore(bench.scripts, "k") as store:
        store.begin(a_plan(), "s")
        store.put_pairs(STATE, pairs(*fields(10)), 0, 10)
        bench.client.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreFull):
                store.flush()
        finally:
            bench.client.config_set("maxmemory", 0)

    assert bench.client.exists(STATE) == 0
