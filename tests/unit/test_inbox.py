"""The fetched part of an inbox: order, joining, cutting, control in its place, poison."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.codec import encode_batch
from pipeline.errors import DecodingError
from pipeline.messages import Barrier, Data, EndOfInput, Header, Release, Table, Watermark, encode_header
from pipeline.positions import START, Position
from pipeline.records import MAX_TIME, MIN_TIME, Batch
from pipeline.store.commits import Entry
from stages.inbox import Inbox, LetGo, Mark, Poisoned, Promise, Records


class Maker:
    """Makes the entries of one inbox, with the ids that scripts would give them."""

    def __init__(self) -> None:
        self.head, self.sub = 0, 0
        self.entries: list[Entry] = []

    def data(self, *values: Any, watermark: int | None = None, skip: tuple[int, ...] = (), **columns: Any) -> Maker:
        batch = Batch(list(values), **columns)
        header = Data("s", self.head + 1, len(values), watermark, 1, skip)
        return self._put(header, encode_batch(batch), len(values))

    def control(self, header: Header) -> Maker:
        return self._put(header, b"", 0)

    def release(self, header: Release, payload: bytes) -> Maker:
        return self._put(header, payload, 0)

    def raw(self, count: int, payload: bytes) -> Maker:
        return self._put(Data("s", self.head + 1, count, None, 1), payload, count)

    def _put(self, header: Header, payload: bytes, count: int) -> Maker:
        self.entries.append(Entry(f"{self.head + 1}-{self.sub}", encode_header(header), payload))
        self.head, self.sub = self.head + count, 0 if count else self.sub + 1
        return self

    def inbox(self, position: Position = START) -> Inbox:
        inbox = Inbox(position)
        inbox.add(self.entries)
        return inbox


def drained(inbox: Inbox, limit: int) -> list[Any]:
    """Everything that is taken, one after the other, each as if it was committed at once."""
    found = []
    while inbox:
        item = inbox.take(limit)
        inbox.move_to(item.end)
        found.append(item)
    return found


@given(
    entries=st.lists(st.one_of(st.integers(1, 5), st.none()), max_size=12),
    limits=st.lists(st.integers(1, 7), min_size=1, max_size=8),
)
def test_every_record_is_taken_once_and_in_order_however_it_is_cut(
    entries: list[int | None], limits: list[int]
) -> None:
    made, number = Maker(), 0
    expected: list[Any] = []
    for size in entries:
        if size is None:
            made.control(Barrier(number))
            expected.append(("barrier", number))
        else:
            made.data(*range(number, number + size))
            expected += list(range(number, number + size))
            number += size
    if not made.entries:
        return
    inbox, found, released, turn = made.inbox(), [], 0, 0

    while inbox:
        limit = limits[turn % len(limits)]
        turn += 1
        item = inbox.take(limit)
        if isinstance(item, Records):
            assert 1 <= len(item.batch) <= limit
            found += item.batch.values
            released += item.released_bytes
        else:
            assert isinstance(item, Mark)
            found.append(("barrier", item.header.epoch))  # type: ignore[union-attr]
        inbox.move_to(item.end)

    assert found == expected
    assert released == sum(len(entry.payload) for entry in made.entries)
    assert inbox.position.entry == inbox.read_from
    assert inbox.position.record == 0


def test_entries_are_joined_up_to_the_limit_with_all_their_columns() -> None:
    made = Maker().data(1, 2, keys=["a", "b"], times=[1, 2], ids=["x", "y"], faults={1: "why"})
    made.data(3, keys=["c"], times=[3], ids=["z"], faults={0: "also"})

    [item] = drained(made.inbox(), 10)

    assert item.batch == Batch([1, 2, 3], ["a", "b", "c"], [1, 2, 3], ["x", "y", "z"], {1: "why", 2: "also"})
    assert item.end == Position("4-0")


def test_what_lets_a_key_go_stands_alone_and_has_no_number() -> None:
    header = Release("7-0", True, 2, 300)
    made = Maker().data(1).release(header, b"the record").data(2)

    items = drained(made.inbox(), 10)

    assert items[1] == LetGo(header, b"the record", Position("2-1"))
    assert [item.batch.values for item in items if isinstance(item, Records)] == [[1], [2]]


@pytest.mark.parametrize("columns", [{"times": [7]}, {"keys": ["k"]}, {"ids": ["i"]}])
def test_entries_with_other_columns_are_not_joined_so_that_none_is_lost(columns: dict[str, Any]) -> None:
    made = Maker().data(1, **columns).data(2).data(3, **columns)

    items = drained(made.inbox(), 10)

    assert [item.batch for item in items] == [Batch([1], **columns), Batch([2]), Batch([3], **columns)]


def test_joining_leaves_the_decoded_entries_as_they_were() -> None:
    inbox = Maker().data(1, 2, keys=["a", "b"]).data(3, 4, keys=["c", "d"]).inbox()

    once, twice = inbox.take(3), inbox.take(3)

    assert once == twice


def test_what_is_taken_again_is_decoded_anew() -> None:
    inbox = Maker().data({"n": 1}, {"n": 2}, {"n": 3}).inbox()
    taken = inbox.take(2)
    assert isinstance(taken, Records)
    taken.batch.values[0]["n"] = 99

    again = inbox.take_again(2)

    assert isinstance(again, Records)
    assert again.batch.values == [{"n": 1}, {"n": 2}]
    assert again.end == taken.end


def test_a_new_owner_begins_inside_an_entry() -> None:
    inbox = Maker().data(*"abcde").inbox(Position("1-0", 3))

    [item] = drained(inbox, 10)

    assert item.batch.values == ["d", "e"]
    assert item.released_bytes > 0


def test_a_watermark_in_a_header_comes_behind_its_records_and_releases_their_bytes() -> None:
    made = Maker().data(1, 2, watermark=50).data(3)

    first, promise, last = drained(made.inbox(), 10)

    assert (first.batch.values, first.end, first.released_bytes) == ([1, 2], Position("1-0", 2), 0)
    assert promise == Promise("s", 50, Position("3-0"), len(made.entries[0].payload))
    assert last.batch.values == [3]


def test_a_promise_is_still_there_after_the_commits_of_its_timers() -> None:
    inbox = Maker().data(1, 2, watermark=50).inbox(Position("1-0", 2 + 7))

    assert isinstance(inbox.take(10), Promise)


def test_data_without_a_watermark_promises_nothing_even_when_all_of_it_was_taken() -> None:
    item = Maker().data(1, 2).inbox(Position("1-0", 2)).take(10)

    assert isinstance(item, Promise)
    assert item.time == MIN_TIME


def test_control_comes_alone_and_in_its_place() -> None:
    made = Maker().control(Watermark("a", 5)).data(1).control(Table(3)).control(Barrier(4)).control(EndOfInput("a"))

    items = drained(made.inbox(), 10)

    assert items == [
        Promise("a", 5, Position("1-1"), 0),
        Records(Batch([1]), Position("2-0"), len(made.entries[1].payload)),
        Mark(Table(3), Position("2-1")),
        Mark(Barrier(4), Position("2-2")),
        Promise("a", MAX_TIME, Position("2-3"), 0),
    ]


def test_records_that_were_seen_before_are_left_out() -> None:
    made = Maker().data(*"abcd", skip=(1, 2)).data("e", skip=(0,)).data("f")

    items = drained(made.inbox(), 3)

    assert [item.batch.values for item in items] == [["a"], ["d"], ["f"]] or [
        value for item in items for value in item.batch.values
    ] == ["a", "d", "f"]


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff\xff\xff", encode_batch(Batch([1])), encode_batch(Batch([1, 2], faults={2: "x"}))],
)
def test_a_payload_that_cannot_be_read_stands_alone(payload: bytes) -> None:
    made = Maker().data("a").raw(2, payload or b"\x00").data("b")

    first, poisoned, last = drained(made.inbox(), 10)

    assert (first.batch.values, last.batch.values) == (["a"], ["b"])
    assert isinstance(poisoned, Poisoned)
    assert (poisoned.count, poisoned.end, poisoned.released_bytes) == (2, Position("4-0"), len(poisoned.payload))


@pytest.mark.parametrize("header", [b"", b"[]", b'["Q",1]', b'["D","s",1]', b"\xff"])
def test_a_header_that_cannot_be_read_is_an_error(header: bytes) -> None:
    bad = Entry("1-0", header, b"")

    with pytest.raises(DecodingError, match="unreadable header"):
        Inbox(START).add([bad])
    inbox = Inbox(START)
    inbox.add([bad, Maker().data(1).entries[0]])
    with pytest.raises(DecodingError, match="unreadable header"):
        inbox.take(1)


def test_what_is_read_on_joins_what_is_there() -> None:
    made = Maker().data(1).data(2)
    inbox = Inbox(START)
    inbox.add(made.entries[:1])
    assert inbox.read_from == "2-0"
    inbox.add(made.entries[1:])

    [item] = drained(inbox, 10)

    assert item.batch.values == [1, 2]
    assert inbox.read_from == "3-0"
