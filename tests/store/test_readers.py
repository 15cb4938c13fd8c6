"""Readers of output streams: exact places, starts, silence, removal, and replies that are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bench import Bench, Hand, a_batch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.codec import encode_batch
from pipeline.errors import ReadingError, StaleReader, StaleTerm, StoreUnavailable
from pipeline.settings import Limits
from pipeline.store import keys
from pipeline.store.commits import Kept, Output, Refusal, Refused, Target
from pipeline.store.connection import connect
from pipeline.store.outputs import Opening, OutputReader, output_facts, remove_reader
from tests.runtime.harness import FlakyScripts, Moment

OUT = Target.stream("j", "out")


def emit(hand: Hand, *values: Any) -> Any:
    return hand.commit(outputs={OUT: [Output("D", len(values), None, encode_batch(a_batch(*values)))]})


def values(reader: OutputReader, **options: Any) -> list[Any]:
    return [value for batch in reader.read(**options) for value in batch.values]


def a_reader(bench: Bench, name: str = "r", start: Any = "begin", seconds: float | None = None) -> OutputReader:
    return OutputReader(bench.scripts, "j", "out", name, bench.limits, Opening(start, seconds))


def facts(bench: Bench) -> Any:
    seconds, micros = bench.client.time()
    waiting = bench.client.hlen(OUT.waiting)
    return output_facts("out", bench.client.hgetall(OUT.meta), waiting, seconds * 1000 + micros // 1000)


def remove(bench: Bench, name: str) -> bool:
    return remove_reader(bench.scripts, "j", "out", name, bench.limits)


@pytest.fixture
def small(make: Callable[..., Bench]) -> Bench:
    return make(limits=Limits(inbox_records=10, inbox_bytes=10_000))


# Replies that are lost


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", range(1, 8))
def test_a_call_that_was_lost_may_be_repeated_wherever_it_was_lost(bench: Bench, call: int, moment: Moment) -> None:
    hand, scripts = bench.worker(), FlakyScripts(bench.client)
    scripts.break_call(moment, ahead=call)
    seen: list[Any] = []

    def insist(step: Callable[[], Any]) -> Any:
        while True:
            try:
                return step()
            except StoreUnavailable:
                continue

    reader = insist(lambda: OutputReader(scripts, "j", "out", "r", bench.limits))
    for number in range(5):
        emit(hand, 2 * number, 2 * number + 1)
        seen += values(reader)
        insist(reader.advance)

    assert seen == list(range(10))
    assert scripts.faults == ({} if call <= 6 else {call: moment})
    assert reader.position == "11-0"
    assert bench.client.xlen(OUT.inbox) == 0


@pytest.mark.parametrize("moment", ["before", "after"])
def test_more_is_read_and_advanced_over_an_advance_without_an_answer(bench: Bench, moment: Moment) -> None:
    hand, scripts = bench.worker(), FlakyScripts(bench.client)
    reader = OutputReader(scripts, "j", "out", "r", bench.limits)
    emit(hand, "a")
    values(reader)
    scripts.break_call(moment)
    with pytest.raises(StoreUnavailable):
        reader.advance()
    emit(hand, "b")

    assert values(reader) == ["b"]
    reader.advance()

    assert reader.position == "3-0"
    assert bench.reader().position == "3-0"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_second_process_is_noticed_even_behind_an_advance_without_an_answer(bench: Bench, moment: Moment) -> None:
    hand, scripts = bench.worker(), FlakyScripts(bench.client)
    one, two = OutputReader(scripts, "j", "out", "r", bench.limits), bench.reader()
    emit(hand, "a")
    values(one)
    scripts.break_call(moment)
    with pytest.raises(StoreUnavailable):
        one.advance()
    emit(hand, "b")
    two = bench.reader()
    values(two)
    two.advance()

    with pytest.raises(StaleReader, match="moved by another process"):
        one.advance()


def test_a_target_that_was_never_sent_is_no_success_when_another_process_stands_there(bench: Bench) -> None:
    one, two, hand = bench.reader(), bench.reader(), bench.worker()
    emit(hand, "a")
    values(one)
    values(two)
    two.advance()

    with pytest.raises(StaleReader, match="moved by another process"):
        one.advance()


# Places


def test_a_place_within_an_entry_is_kept_exactly(bench: Bench) -> None:
    reader, hand = bench.reader(), bench.worker()
    emit(hand, "a", "b", "c", "d")
    emit(hand, "e")
    stretch = reader.fetch()[0]

    reader.advance(stretch.place(3))

    assert bench.client.xlen(OUT.inbox) == 2
    again = bench.reader()
    assert (again.position, again.next_number, again.is_new) == ("1-0/3", 4, False)
    assert values(again) == ["d", "e"]
    again.advance()
    assert bench.client.xlen(OUT.inbox) == 0


def test_a_stretch_says_which_records_it_has(bench: Bench) -> None:
    hand = bench.worker()
    emit(hand, "a", "b", "c")
    hand.commit(outputs={OUT: [Output("W", 0, 5), Output("D", 2, None, encode_batch(a_batch("d", "e")))]})

    found = a_reader(bench, start=2).fetch()

    assert [(one.first, one.count, one.batch().values) for one in found] == [(2, 2, ["b", "c"]), (4, 2, ["d", "e"])]
    assert [one.place(one.count) for one in found] == ["4-0", "6-0"]


def test_a_new_reader_begins_where_it_wants(bench: Bench) -> None:
    first, hand = bench.reader("first"), bench.worker()
    for number in range(1, 9, 2):
        emit(hand, number, number + 1)
    values(first, entries=1)
    first.advance()

    for start, expected in {"begin": [3, 4, 5, 6, 7, 8], 3: [3, 4, 5, 6, 7, 8], 6: [6, 7, 8], 8: [8], 9: []}.items():
        assert values(a_reader(bench, f"r{start}", start)) == expected
    late = a_reader(bench, "late", "end")
    emit(hand, 9)
    assert values(late) == [9]


def test_a_start_that_is_gone_or_not_there_yet_is_refused_with_what_there_is(bench: Bench) -> None:
    first, hand = bench.reader("first"), bench.worker()
    emit(hand, 1, 2)
    emit(hand, 3)
    values(first, entries=1)
    first.advance()

    with pytest.raises(ReadingError, match="the result 2 of 'out' is no longer kept; the oldest is 3"):
        a_reader(bench, start=2)
    with pytest.raises(ReadingError, match="not there yet; the next one will be 4"):
        a_reader(bench, start=5)
    assert [reader.name for reader in facts(bench).readers] == ["first"]


def test_a_reader_that_begins_at_the_end_of_a_full_stream_does_not_stop_it(small: Bench) -> None:
    hand = small.worker()
    for number in range(20):
        assert emit(hand, number) == Kept()

    reader = a_reader(small, start="end")

    assert emit(hand, "new") == Kept()
    assert values(reader) == ["new"]


# Readers without a name


def test_what_a_reader_without_a_name_has_read_stays_for_others(bench: Bench) -> None:
    hand = bench.worker()
    emit(hand, 1, 2)
    one = a_reader(bench, "_one")
    assert values(one) == [1, 2]
    one.advance()
    remove(bench, "_one")

    assert values(a_reader(bench, "_two")) == [1, 2]


def test_a_reader_without_a_name_holds_what_it_has_not_read_and_no_more(small: Bench) -> None:
    reader, hand = a_reader(small, "_r", "end"), small.worker()
    for number in range(10):
        assert emit(hand, number) == Kept()

    assert isinstance(reply := emit(hand, "more"), Refused)
    assert reply.why is Refusal.FULL
    assert small.ring() == "w"
    assert values(reader, entries=1) == [0]
    reader.advance()

    assert (small.ring(), small.tickets()) == ("1", 1)
    assert emit(hand, "more") == Kept()
    assert values(reader) == [*range(1, 10), "more"]
    reader.advance()
    for number in range(30):
        assert emit(hand, number) == Kept()
        assert values(reader) == [number]
        reader.advance()
    assert values(a_reader(small, "_other")) == list(range(20, 30))


def test_a_batch_that_overshoots_the_bound_trims_nothing_that_is_not_read_yet(small: Bench) -> None:
    reader, hand = a_reader(small, "_r"), small.worker()
    for number in range(9):
        emit(hand, number)

    assert emit(hand, *range(9, 20)) == Kept()

    assert values(reader) == list(range(20))


def test_named_readers_decide_what_is_given_up_and_others_hold_it(bench: Bench) -> None:
    named, other, hand = bench.reader("named"), a_reader(bench, "_other"), bench.worker()
    emit(hand, 1)
    emit(hand, 2)
    values(named)
    named.advance()
    assert bench.client.xlen(OUT.inbox) == 2

    values(other, entries=1)
    other.advance()
    assert bench.client.xlen(OUT.inbox) == 1
    remove(bench, "_other")
    assert bench.client.xlen(OUT.inbox) == 0


# Removal and silence


def test_the_removal_of_the_slowest_reader_lets_the_job_go_on(small: Bench) -> None:
    small.reader("gone")
    hand, alive = small.worker(), small.reader("alive")
    for number in range(10):
        emit(hand, number)
    values(alive)
    alive.advance()
    assert isinstance(emit(hand, "more"), Refused)

    assert remove(small, "gone")

    assert (small.ring(), small.tickets()) == ("1", 1)
    assert emit(hand, "more") == Kept()
    assert values(alive) == ["more"]
    assert not remove(small, "gone")


def test_without_any_reader_left_the_newest_records_are_kept_again(small: Bench) -> None:
    hand = small.worker()
    small.reader("only")
    for number in range(10):
        emit(hand, number)
    assert isinstance(emit(hand, "more"), Refused)

    remove(small, "only")

    assert small.tickets() == 1
    for number in range(10, 30):
        assert emit(hand, number) == Kept()
    assert values(small.reader("new")) == list(range(20, 30))


def test_a_reader_that_was_removed_is_told_and_leaves_nothing(bench: Bench) -> None:
    reader, hand = bench.reader(), bench.worker()
    emit(hand, 1)
    values(reader)
    remove(bench, "r")

    with pytest.raises(StaleReader, match="was removed, or had expired"):
        reader.advance()

    assert not [field for field in bench.client.hkeys(OUT.meta) if field[1:2] == b":"]


def test_a_reader_that_was_removed_sees_that_records_are_missing(small: Bench) -> None:
    reader, hand = small.reader(), small.worker()
    emit(hand, 0)
    values(reader)
    remove(small, "r")
    for number in range(1, 30):
        emit(hand, number)

    with pytest.raises(StaleReader, match="results 2 to 20 of 'out' are gone"):
        reader.fetch()


def silence(bench: Bench, name: str, seconds: float) -> None:
    bench.client.hincrby(OUT.meta, f"h:{name}", -int(seconds * 1000))


def test_a_reader_that_is_silent_for_longer_than_it_said_is_forgotten_by_the_leader(bench: Bench) -> None:
    hand = bench.worker()
    a_reader(bench, "short", seconds=60)
    a_reader(bench, "long", seconds=3600)
    a_reader(bench, "ever")
    emit(hand, 1)
    for name in ("short", "long", "ever"):
        silence(bench, name, 61)

    gone = bench.leadership.remove_silent_readers("j", bench.token, "out", bench.limits)

    assert gone == ["short"]
    assert [reader.name for reader in facts(bench).readers] == ["ever", "long"]
    assert bench.leadership.remove_silent_readers("j", bench.token, "out", bench.limits) == []


def test_a_reader_that_says_it_is_there_is_not_forgotten(bench: Bench) -> None:
    reader = a_reader(bench, seconds=60)
    silence(bench, "r", 61)
    reader.keep()

    assert bench.leadership.remove_silent_readers("j", bench.token, "out", bench.limits) == []


def test_only_the_leader_forgets_readers(bench: Bench) -> None:
    a_reader(bench, seconds=60)
    silence(bench, "r", 61)

    with pytest.raises(StaleTerm):
        bench.leadership.remove_silent_readers("j", "1:somebody", "out", bench.limits)

    assert [reader.name for reader in facts(bench).readers] == ["r"]


@pytest.mark.parametrize("name", ["new", "_new"])
def test_without_memory_readers_come_and_go(bench: Bench, full_memory: Callable[[], None], name: str) -> None:
    """A6: what drains a full Redis must not need memory."""
    hand = bench.worker()
    emit(hand, 1)
    full_memory()

    reader, other = bench.reader(name), bench.reader("other")
    assert values(reader) == values(other) == [1]
    reader.advance()
    other.advance()
    assert remove(bench, name)
    assert remove(bench, "other")

    assert bench.client.xlen(OUT.inbox) == 0


def test_facts_name_the_reader_that_a_full_output_waits_for(small: Bench) -> None:
    hand, fast = small.worker(), small.reader("fast")
    a_reader(small, "slow", seconds=90)
    for number in range(10):
        emit(hand, number)
    values(fast)
    fast.advance()
    emit(hand, "more")

    found = facts(small)

    assert (found.oldest, found.next_number, found.waiting) == (1, 11, 1)
    assert [(each.name, each.next_number, each.unread) for each in found.readers] == [("fast", 11, 0), ("slow", 1, 10)]
    assert found.slowest.name == "slow"
    assert (found.slowest.expire_seconds, found.slowest.is_temporary) == (90.0, False)


def test_a_call_after_the_job_was_removed_makes_no_key(bench: Bench) -> None:
    reader, hand = bench.reader(), bench.worker()
    emit(hand, 1)
    values(reader)
    bench.jobs.erase("j")

    with pytest.raises(StaleReader):
        reader.advance()
    assert not remove(bench, "r")

    assert list(bench.client.scan_iter(f"{keys.of_job('j')}*")) == []


# Everything at once

NAMES = ("a", "b", "_c", "_d")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("emit"), st.integers(1, 5)),
        st.tuples(st.just("open"), st.sampled_from(NAMES), st.sampled_from(["begin", "end"])),
        st.tuples(st.just("read"), st.sampled_from(NAMES), st.integers(1, 4)),
        st.tuples(st.just("part"), st.sampled_from(NAMES), st.integers(0, 3)),
        st.tuples(st.just("remove"), st.sampled_from(NAMES)),
    ),
    max_size=60,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(steps=STEPS)
def test_whatever_readers_do_none_misses_a_record_and_the_stream_is_bounded(
    make: Callable[..., Bench], redis_url: str, steps: list[Any]
) -> None:
    with connect(redis_url) as client:
        client.flushall()
    bench = make(limits=Limits(inbox_records=12, inbox_bytes=400))
    hand, readers, number = bench.worker(), dict[str, Any](), 0
    for step in steps:
        match step:
            case "emit", count:
                new = list(range(number + 1, number + count + 1))
                reply = emit(hand, *new)
                if isinstance(reply, Refused):
                    slowest = min(reader.next_committed for reader in readers.values())
                    assert number + 1 - slowest >= 3, "refused, and every reader is close to the end"
                else:
                    number += count
            case "open", name, start if name not in readers:
                readers[name] = Follower(bench, name, start)
            case "read", name, entries if name in readers:
                readers[name].read(entries)
            case "part", name, records if name in readers:
                readers[name].part(records)
            case "remove", name if name in readers:
                del readers[name]
                remove(bench, name)
        assert bench.client.xlen(OUT.inbox) <= 30
    for reader in readers.values():
        reader.read(1000)
        assert reader.expected == number + 1
    assert emit(hand, number + 1) == Kept(), "everybody has read all, and the stream takes no more"


class Follower:
    """Reads and checks that nothing is missing."""

    def __init__(self, bench: Bench, name: str, start: str) -> None:
        self.reader = a_reader(bench, name, start)
        self.expected = self.next_committed = self.reader.next_number

    def read(self, entries: int) -> None:
        for value in values(self.reader, entries=entries):
            assert value == self.expected
            self.expected += 1
        self.reader.advance()
        self.next_committed = self.expected

    def part(self, records: int) -> None:
        for stretch in self.reader.fetch(1):
            assert stretch.batch().values == list(range(self.expected, self.expected + stretch.count))
            self.expected += stretch.count
            done = min(records, stretch.count)
            self.reader.advance(stretch.place(done))
            self.next_committed = stretch.first + done
