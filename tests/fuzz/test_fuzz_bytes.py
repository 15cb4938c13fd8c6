"""Bytes of payloads, headers, state, plans: whatever they are, a typed error or something that can be worked with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline import Pipeline, read, write
from pipeline.aggregates import count
from pipeline.cli.letters import letter_json, letter_lines, list_lines
from pipeline.cli.nodes import NodeSettings
from pipeline.codec import (
    decode_batch,
    decode_value,
    encode_batch,
    encode_value,
    read_key_field,
    read_timer_member,
    split_state_field,
    state_field,
    timer_member,
)
from pipeline.errors import CeleriacError, DecodingError, ForeignData, InputError
from pipeline.keying import group_of
from pipeline.messages import Data, Release, encode_header
from pipeline.plan import Plan, compile_plan
from pipeline.positions import START
from pipeline.records import MAX_TIME, MIN_TIME, Batch, Timer
from pipeline.settings import Limits
from pipeline.sinks.staging import StagedFacts
from pipeline.sources.filemarks import find_mark
from pipeline.sources.sqlvalues import from_position
from pipeline.store.commits import Entry
from pipeline.store.foreign import ours
from pipeline.store.holds import read_hold
from pipeline.store.letters import read_letter
from pipeline.store.losses import read_position
from stages.inbox import Inbox, LetGo, Mark, Poisoned, Promise, Records
from tests.fuzz.hostile import JSON_VALUES, bent, fields, msgpack, payloads, tried


def outcome(call: Callable[[], Any], *refusals: type[CeleriacError]) -> tuple[Any, str]:
    """What a call gives, or the words, of a readable length, with which it refuses in one of these ways."""
    try:
        return call(), ""
    except refusals as error:
        why = str(error)
    assert 0 < len(why) < 1000
    return None, why


REAL_BATCHES = st.sampled_from(
    [
        encode_batch(Batch(["a", 1, None])),
        encode_batch(Batch([{"n": 1}, [2.5]], ["k", 7], [1, 2], ["x", "y"], {1: "why"})),
        encode_batch(Batch([b"\xff"], [("t", (1, b"b"))])),
        encode_batch(Batch([])),
    ]
)


@given(payload=payloads() | bent(REAL_BATCHES))
@example(payload=b"\x01\x01\x95\x91\x01\x91\x91\x01\xc0\xc0\x80")  # a list as a key, where no tuples are
@example(payload=b"\x01\x02\x95\x91\x01\x91\x91\x80\xc0\xc0\x80")  # a dict inside a tuple
@example(payload=b"\x01\x02\x95\x91\x01\x91" + b"\x91" * 900 + b"\xc0\xc0\xc0\x80")  # a key nested for long
@example(payload=b"\x01\x01\x95\x91\x01\xc0\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xc0\x80")  # a time beyond all
@tried(150)
def test_a_payload_is_a_decoding_error_or_a_batch_that_can_be_worked_with(payload: bytes) -> None:
    try:
        batch = decode_batch(payload)
    except DecodingError:
        return
    assert all(column is None or len(column) == len(batch) for column in (batch.keys, batch.times, batch.ids))
    assert len(set(batch.keys or ())) <= len(batch)
    assert all(MIN_TIME <= time <= MAX_TIME for time in batch.times or ())
    again = decode_batch(encode_batch(batch))
    assert repr(again) == repr(batch)


REAL_HEADERS = st.sampled_from(
    [
        encode_header(Data("0.1", 7, 3, -5, 1, (0, 2))),
        encode_header(Data("replay:1-1", 7, 1, None, 1)),
        b'["W","0.1",9007199254740991]',
        b'["E","source"]',
        encode_header(Release("1-1", True, 3, 100)),
        b'["B",4]',
        b'["T",2]',
    ]
)
JSON_HEADERS = st.tuples(st.sampled_from("DWERBTX"), st.lists(JSON_VALUES, max_size=6)).map(
    lambda pair: json.dumps([pair[0], *pair[1]]).encode()
)
HEADERS = bent(REAL_HEADERS) | JSON_HEADERS | REAL_HEADERS


def taken(entries: list[Entry], limit: int) -> list[Any]:
    """All that an owner takes of these entries. Raises CeleriacError."""
    inbox, items = Inbox(START, 1 << 20), []
    inbox.add(entries)
    for _ in range(50):
        if not inbox:
            break
        item = inbox.take(limit)
        items.append(item)
        assert item.end.order > inbox.position.order
        inbox.move_to(item.end)
    return items


@given(header=HEADERS, payload=bent(REAL_BATCHES) | REAL_BATCHES | payloads(), limit=st.integers(1, 5))
@example(header=b'["D","a",1,-5,null,1,[]]', payload=encode_batch(Batch(["a"])), limit=1)
@example(header=b'["W","a",' + b"9" * 400 + b"]", payload=b"", limit=1)
@tried(150)
def test_a_poisoned_entry_is_set_apart_or_named_and_the_position_goes_on(
    header: bytes, payload: bytes, limit: int
) -> None:
    good = Entry("1-0", encode_header(Data("1", 1, 2, None, 1)), encode_batch(Batch(["a", "b"])))
    items, why = outcome(lambda: taken([good, Entry("3-0", header, payload)], limit), DecodingError, ForeignData)
    if why:
        return
    values = [value for item in items if isinstance(item, Records) for value in item.batch.values]
    assert values[:2] == ["a", "b"]
    assert all(isinstance(item, Records | Poisoned | Promise | LetGo | Mark) for item in items)


def test_a_payload_larger_than_any_of_ours_is_not_decoded() -> None:
    bomb = encode_batch(Batch(["x" * (1 << 20)]))
    (item,) = taken([Entry("1-0", encode_header(Data("1", 1, 1, None, 1)), bomb)], 1)

    assert isinstance(item, Poisoned)
    assert "more than the 1,048,576 of any of ours" in str(item.why)


# What is stored beside entries.

REAL_STORED = st.sampled_from(
    [
        state_field("op", ("a", 1)),
        state_field("op", "k"),
        timer_member(Timer("op", (1, ("b",)), 7)),
        timer_member(Timer("op", b"k", MAX_TIME)),
        b"3 100 0 0 2",
        b"12-3/7",
        StagedFacts("part-1-0-1", 10, 2).encode(),
        NodeSettings("redis://h", "j", "f.py", 1, ("s",), "", "l", "t").encode(),
        encode_value({"a": [1, None]}),
    ]
)


def _position(data: bytes) -> Any:
    with ours("key"):
        return read_position(data.decode())


STORED: dict[str, Callable[[bytes], Any]] = {
    "state": decode_value,
    "state field": split_state_field,
    "key field": read_key_field,
    "timer": read_timer_member,
    "hold": read_hold,
    "position": _position,
    "staged facts": StagedFacts.decode,
    "node settings": NodeSettings.decode,
    "letter": lambda data: read_letter("1-1", {b"stage": data, b"payload": data}),
}


@pytest.mark.parametrize("kind", STORED)
@given(data=bent(REAL_STORED) | fields() | msgpack() | msgpack().map(b"op\0".__add__))
@example(data=b"op\0\x81\xa1a\x01")  # a dict as a key
@example(data=b"\x81\xa1a\x01")
@example(data=b"op\0\xc7\x00\x00")  # an extension of another program
@example(data=b"op\0\x92\x01\xcf\xff\xff\xff\xff\xff\xff\xff\xff")  # a timer that is never due
@tried(40)
def test_what_is_stored_is_a_typed_error_or_a_value_that_can_be_a_key_again(kind: str, data: bytes) -> None:
    found, why = outcome(lambda: STORED[kind](data), DecodingError, ForeignData)
    if why:
        return
    if kind in ("state field", "key field", "timer"):
        hash(found)
    if kind == "timer":
        assert MIN_TIME <= found.due <= MAX_TIME


@given(
    found=st.dictionaries(
        st.sampled_from(
            [b"stage", b"partition", b"operator", b"error", b"traceback", b"payload", b"kind", b"tried", b"holds"]
        ),
        fields() | payloads() | bent(REAL_BATCHES),
    ),
    id_=st.sampled_from(["1-1", "18446744073709551615-1", "1700000000000-0"]),
    edited=st.just(b"") | payloads(),
)
@example(
    found={b"stage": b"99", b"partition": b"0", b"operator": b"", b"error": b"e", b"traceback": b"", b"payload": b"",
            b"tried": b"a"},
    id_="18446744073709551615-1",
    edited=b"",
)  # fmt: skip
@tried(40)
def test_any_entry_among_the_dead_letters_can_be_shown(found: dict[bytes, bytes], id_: str, edited: bytes) -> None:
    letter = read_letter(id_, found, edited)

    assert all(len(line) <= 80 for line in list_lines(PLAN, [letter], 1_700_000_000_000))
    assert "\n".join(letter_lines(PLAN, letter))
    assert json.dumps(letter_json(PLAN, letter))


@given(position=JSON_VALUES)
@example(position=[1, 2, 3])
@example(position=[10**30, 1, "x"])
@tried(100)
def test_a_position_that_no_source_has_stored_is_an_input_error(position: Any) -> None:
    with open(__file__, "rb") as file:
        for read_it in (lambda: find_mark(file.fileno(), position), lambda: from_position(position)):
            _, why = outcome(read_it, InputError)
            assert not why or "none of its own" in why


# The plan.


def a_plan() -> Plan:
    flow = Pipeline("planned")
    words = flow.source(read.producer(), name="in").key_by(lambda v: v, name="by")
    words.aggregate(count(), name="n").sink(write.stream("out"), name="out")
    words.sink(write.jsonl("rows"), name="rows")
    return compile_plan(flow.graph(), 2, Limits())


PLAN = a_plan()


@st.composite
def bent_plans(draw: st.DrawFn) -> bytes:
    """The real plan with one value somewhere in it replaced by any other."""
    plan = json.loads(PLAN.encode())
    holder: Any = plan
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from(keys))
        if not isinstance(holder[key], dict | list) or not holder[key] or draw(st.booleans()):
            holder[key] = draw(JSON_VALUES)
            return json.dumps(plan).encode()
        holder = holder[key]


def test_the_real_plan_is_believed() -> None:
    assert Plan.decode(PLAN.encode()) == PLAN


@given(data=bent_plans() | bent(st.just(PLAN.encode())) | fields())
@example(data=PLAN.encode().replace(b'"partitions":2', b'"partitions":1000000000000000'))
@example(data=PLAN.encode().replace(b'"lease_seconds":2.0', b'"lease_seconds":1e999'))
@example(data=PLAN.encode().replace(b'"exchanges":{"by":1}', b'"exchanges":{"by":7}'))
@tried(120)
def test_a_plan_is_a_decoding_error_or_one_whose_parts_fit_together(data: bytes) -> None:
    plan, why = outcome(lambda: Plan.decode(data), DecodingError)
    if why:
        return
    assert len(plan.partitions()) <= 65_536 * len(plan.stages)
    for stage in plan.stages:
        assert plan.stage(stage.index) is stage
        assert all(plan.stage(to) for to in (*stage.exchanges.values(), *stage.upstream))
    assert int(plan.limits.lease_seconds * 1000) >= 0
    assert Plan.decode(plan.encode()) == plan


@given(key=msgpack())
@tried(100)
def test_a_key_that_was_read_has_a_group_or_is_refused(key: bytes) -> None:
    try:
        found = read_key_field(key)
        group_of(found)
    except CeleriacError:
        return
    assert msgspec.msgpack.encode(found)
