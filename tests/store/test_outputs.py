"""Output streams: bounded without readers, trimmed to the slowest with them, FULL when one is slow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from bench import Bench, Hand, a_batch

from pipeline.codec import encode_batch
from pipeline.errors import StoreError, StoreUnavailable, UnknownJob
from pipeline.positions import Position
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.commits import Kept, Output, Refusal, Refused, Target
from pipeline.store.connection import connect
from pipeline.store.outputs import OutputReader
from pipeline.store.scripts import Scripts
from tests.runtime.harness import FlakyScripts, Moment

OUT = Target.stream("j", "out")


def emit(hand: Hand, *values: Any) -> Any:
    return hand.commit(outputs={OUT: [Output("D", len(values), None, encode_batch(a_batch(*values)))]})


def values(reader: OutputReader, **options: Any) -> list[Any]:
    return [value for batch in reader.read(**options) for value in batch.values]


def kept(bench: Bench) -> tuple[int, int]:
    """(entries, payload bytes) in the stream."""
    raw = bench.client.xrange(OUT.inbox)
    return len(raw), sum(len(fields[b"d"]) for _, fields in raw)


@pytest.fixture
def small(make: Callable[..., Bench]) -> Bench:
    return make(limits=Limits(inbox_records=10, inbox_bytes=10_000))


def test_without_a_reader_only_the_newest_records_within_the_bound_stay(small: Bench) -> None:
    """B10."""
    hand = small.worker()

    for number in range(1, 101):
        assert emit(hand, number) == Kept()

    assert values(small.reader()) == list(range(91, 101))


def test_without_a_reader_a_batch_larger_than_the_bound_replaces_what_was_there(small: Bench) -> None:
    """B10: nothing grows without bound, whatever the size of a batch."""
    hand = small.worker()

    for number in range(5):
        emit(hand, *[number] * 25)

    assert kept(small)[0] == 1
    assert values(small.reader()) == [4] * 25


def test_without_a_reader_the_bound_in_bytes_holds_too(small: Bench) -> None:
    """B10."""
    hand = small.worker()

    for _ in range(200):
        emit(hand, "x" * 3_000)

    entries, size = kept(small)
    assert entries == 3
    assert int(small.client.hget(OUT.meta, "bytes")) == size


def test_a_long_stream_is_trimmed_over_many_pages(make: Callable[..., Bench]) -> None:
    bench = make(limits=Limits(inbox_records=1_000))
    hand = bench.worker()
    for number in range(200):
        emit(hand, number)

    emit(hand, *range(995))

    assert bench.client.xlen(OUT.inbox) == 6


@pytest.mark.parametrize("count", [1, 2, 3, 61, 62, 63, 64, 65, 126, 128])
def test_a_huge_batch_behind_a_full_page_leaves_itself_alone(make: Callable[..., Bench], count: int) -> None:
    bench = make(limits=Limits(inbox_records=1_000))
    hand = bench.worker()
    for number in range(count):
        emit(hand, number)

    emit(hand, *range(2_000))

    assert bench.client.xlen(OUT.inbox) == 1


def test_a_stream_at_its_bound_is_not_read_through_by_each_commit(make: Callable[..., Bench]) -> None:
    """A6: what a commit costs does not depend on how large the entries are that were there before."""
    bench = make(limits=Limits(inbox_records=100))
    hand = bench.worker()
    for number in range(100):
        emit(hand, number)

    with bench.client.monitor() as monitor:
        emit(hand, 100)
        bench.client.ping()
        commands: list[str] = []
        while not commands or commands[-1] != "PING":
            commands.append(monitor.next_command()["command"])

    read = [int(words[-1]) for words in map(str.split, commands) if words[:2] == ["XRANGE", OUT.inbox]]
    assert read
    assert sum(read) <= 2
    assert kept(bench)[0] == 100


def test_a_reader_sees_everything_in_order_and_once(bench: Bench) -> None:
    reader, hand = bench.reader(), bench.worker()
    emit(hand, "a", "b")
    emit(hand, "c")

    assert values(reader, entries=1) == ["a", "b"]
    assert values(reader) == ["c"]
    assert values(reader) == []
    emit(hand, b"\x00\xff")
    assert values(reader) == [b"\x00\xff"]


def test_a_reader_goes_on_where_it_advanced_to(bench: Bench) -> None:
    reader, hand = bench.reader(), bench.worker()
    emit(hand, "a")
    values(reader)
    reader.advance()
    emit(hand, "b")
    values(reader)

    again = bench.reader()

    assert again.position == "2-0"
    assert values(again) == ["b"]


def test_the_stream_is_trimmed_to_the_slowest_reader(bench: Bench) -> None:
    """B10."""
    fast, slow, hand = bench.reader("fast"), bench.reader("slow"), bench.worker()
    for number in range(10):
        emit(hand, number)

    values(fast)
    fast.advance()
    assert kept(bench)[0] == 10

    values(slow, entries=4)
    slow.advance()
    assert kept(bench) == (6, int(bench.client.hget(OUT.meta, "bytes")))
    assert values(slow) == list(range(4, 10))
    slow.advance()
    assert kept(bench) == (0, 0)
    assert bench.client.hget(OUT.meta, "bytes") == b"0"


def test_a_new_reader_starts_at_the_oldest_record_kept(bench: Bench) -> None:
    first, hand = bench.reader("first"), bench.worker()
    for number in range(4):
        emit(hand, number)
    values(first, entries=2)
    first.advance()

    assert values(bench.reader("second")) == [2, 3]


def test_a_slow_reader_makes_the_stream_full_and_its_advance_wakes_the_writer(small: Bench) -> None:
    """B10, A10: bounded, and nothing is lost."""
    reader, hand = small.reader(), small.worker()
    for number in range(10):
        assert emit(hand, number) == Kept()

    reply = emit(hand, "more")

    assert isinstance(reply, Refused)
    assert reply.why is Refusal.FULL
    assert (small.ring(), small.tickets()) == ("w", 0)
    values(reader, entries=2)
    reader.advance()
    assert (small.ring(), small.tickets()) == ("w", 0)
    values(reader)
    reader.advance()
    assert (small.ring(), small.tickets()) == ("1", 1)
    assert not small.client.exists(keys.out_waiting("j", "out"))
    assert emit(hand, "more") == Kept()
    assert values(reader) == ["more"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("is_more", [False, True])
def test_a_reader_whose_advance_was_not_answered_goes_on(bench: Bench, moment: Moment, is_more: bool) -> None:
    scripts = FlakyScripts(connect(bench.url))
    reader, hand = OutputReader(scripts, "j", "out", "r", bench.limits), bench.worker()
    emit(hand, "a")
    assert values(reader) == ["a"]
    scripts.break_call(moment)
    with pytest.raises(StoreUnavailable):
        reader.advance()
    if is_more:
        emit(hand, "b")
        assert values(reader) == ["b"]

    reader.advance()

    emit(hand, "c")
    assert values(reader) == ["c"]
    assert values(bench.reader()) == ["c"]
    scripts.client.close()


def test_a_reader_of_the_same_name_in_two_places_is_told(bench: Bench) -> None:
    one, two, hand = bench.reader(), bench.reader(), bench.worker()
    emit(hand, "a")
    values(one)
    values(two)
    one.advance()

    with pytest.raises(StoreError, match="moved by another"):
        two.advance()


def test_an_advance_without_reading_changes_nothing(bench: Bench) -> None:
    reader, hand = bench.reader(), bench.worker()
    emit(hand, "a")

    reader.advance()

    assert values(reader) == ["a"]


def test_a_reader_waits_for_the_first_record(bench: Bench) -> None:
    with connect(bench.url) as other:
        reader = OutputReader(Scripts(other), "j", "out", "r", bench.limits)
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.extend(values(reader, wait_ms=20_000)))
        waiting.start()
        emit(bench.worker(), "a")
        waiting.join(5)

    assert found == ["a"]


def test_a_wait_that_ends_is_no_error(bench: Bench) -> None:
    assert bench.reader().read(wait_ms=10) == []


def test_without_memory_a_reader_advances_and_frees_it(bench: Bench, full_memory: Callable[[], None]) -> None:
    """A6."""
    reader, hand = bench.reader(), bench.worker()
    emit(hand, "a")
    full_memory()

    assert values(reader) == ["a"]
    reader.advance()

    assert kept(bench)[0] == 0


def test_a_reader_of_an_unknown_job_is_refused(bench: Bench) -> None:
    with pytest.raises(UnknownJob):
        OutputReader(bench.scripts, "nobody", "out", "r", bench.limits)


def test_outputs_and_the_position_are_one_commit(bench: Bench) -> None:
    bench.lane().append(1, a_batch("a"))
    hand = bench.worker()
    reader = bench.reader()
    hand.commit(Position("2-0"), outputs={OUT: [Output("D", 1, None, encode_batch(a_batch("A")))]})
    again = Hand(bench, hand.row)

    assert values(reader) == ["A"]
    assert again.position == Position("2-0")
