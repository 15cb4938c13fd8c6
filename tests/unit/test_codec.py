"""The codec: everything comes back as it was, and broken bytes are a DecodingError and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.codec import (
    check_encodable,
    decode_batch,
    decode_value,
    decoder_of,
    encode_batch,
    encode_value,
    read_timer_member,
    shown,
    split_state_field,
    state_field,
    timer_member,
)
from pipeline.errors import DecodingError, EncodingError
from pipeline.records import MAX_TIME, MIN_TIME, Batch, Timer

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTEGERS = st.integers(-(2**63), 2**64 - 1)
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | TEXT | st.binary(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=10
)
KEYS = st.recursive(
    TEXT | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=10),
    lambda inner: st.tuples(inner) | st.tuples(inner, inner) | st.just(()),
    max_leaves=4,
)
TIMES = st.integers(MIN_TIME, MAX_TIME)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    values = draw(st.lists(VALUES, max_size=8))

    def column(of: st.SearchStrategy[Any]) -> list[Any] | None:
        return draw(st.none() | st.lists(of, min_size=len(values), max_size=len(values)))

    faults = draw(st.dictionaries(st.integers(0, max(0, len(values) - 1)), TEXT, max_size=3)) if values else {}
    return Batch(values, column(KEYS), column(TIMES), column(TEXT), faults)


@given(batch=batches())
def test_every_batch_comes_back_as_it_was(batch: Batch) -> None:
    back = decode_batch(encode_batch(batch))

    assert back == batch
    assert [type(key) for key in back.keys or ()] == [type(key) for key in batch.keys or ()]


def test_keys_keep_their_type_exactly() -> None:
    keys: list[Any] = ["1", 1, b"1", (1, "1"), ((b"1",), ()), ("a", ("b", ("c",)))]

    assert decode_batch(encode_batch(Batch([0] * 6, keys))).keys == keys


def test_lists_among_the_values_stay_lists_beside_tuple_keys() -> None:
    back = decode_batch(encode_batch(Batch([[1, [2]]], [("a", 1)])))

    assert back.values == [[1, [2]]]
    assert back.keys == [("a", 1)]


def test_a_moment_in_time_comes_back_and_a_tuple_value_becomes_a_list() -> None:
    moment = datetime(2013, 1, 1, 12, 30, tzinfo=UTC)

    assert decode_batch(encode_batch(Batch([moment, (1, 2)]))).values == [moment, [1, 2]]


def test_faults_survive() -> None:
    batch = Batch(["a", "raw \x00 line"], faults={1: "no number: 'x'"})

    assert decode_batch(encode_batch(batch)).faults == {1: "no number: 'x'"}


# Broken bytes.


@given(data=st.binary(max_size=60))
def test_random_bytes_are_a_decoding_error_or_a_batch(data: bytes) -> None:
    for payload in (data, b"\x01\x01" + data, b"\x01\x02" + data, b"\x01\x01\x95" + data, b"\x01\x02\x95" + data):
        try:
            batch = decode_batch(payload)
        except DecodingError:
            continue
        assert isinstance(batch, Batch)


@given(batch=batches(), data=st.data())
def test_a_payload_cut_anywhere_is_a_decoding_error(batch: Batch, data: st.DataObject) -> None:
    payload = encode_batch(batch)
    cut = data.draw(st.integers(0, len(payload) - 1))

    with pytest.raises(DecodingError):
        decode_batch(payload[:cut])
    with pytest.raises(DecodingError):
        decode_batch(payload + b"\x00")


@given(batch=batches(), data=st.data())
def test_a_flipped_byte_is_a_decoding_error_or_another_batch(batch: Batch, data: st.DataObject) -> None:
    payload = bytearray(encode_batch(batch))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))

    try:
        back = decode_batch(bytes(payload))
    except DecodingError:
        return
    assert all(column is None or len(column) == len(back) for column in (back.keys, back.times, back.ids))


@given(values=st.lists(st.integers(0, 9) | st.text(max_size=3) | st.none(), max_size=6), keys=st.booleans())
def test_values_of_one_type_come_as_by_the_general_way_and_others_are_a_decoding_error(
    values: list[Any], keys: bool
) -> None:
    payload = encode_batch(Batch(values, [("k", index) for index in range(len(values))] if keys else None))
    decode = decoder_of(int | None)

    if str in set(map(type, values)):
        with pytest.raises(DecodingError):
            decode(payload)
    else:
        assert decode(payload) == decode_batch(payload)
    with pytest.raises(DecodingError):
        decode(payload[:-1])


@pytest.mark.parametrize("head", [b"\x00\x01", b"\x02\x01", b"\x01\x00", b"\x01\x03", b"\xff\xff", b""])
def test_an_unknown_version_or_codec_is_named(head: bytes) -> None:
    payload = head + encode_batch(Batch(["a"]))[2:]

    with pytest.raises(DecodingError, match="version or codec"):
        decode_batch(payload if head else b"")


def test_columns_of_unequal_length_are_refused() -> None:
    with pytest.raises(DecodingError, match="unequal length"):
        decode_batch(encode_batch(Batch(["a", "b"], keys=["k"])))


def test_a_header_that_promises_millions_of_records_allocates_nothing() -> None:
    for liar in (b"\xdd\xff\xff\xff\xff", b"\x95\xdd\xff\xff\xff\xff", b"\x95\xc6\xff\xff\xff\xff"):
        with pytest.raises(DecodingError):
            decode_batch(b"\x01\x01" + liar)


def test_bytes_nested_without_end_are_a_decoding_error() -> None:
    for deep in (b"\x91" * 100_000, b"\x81\xa1k" * 100_000):
        with pytest.raises(DecodingError):
            decode_batch(b"\x01\x01\x95\x91" + deep)
        with pytest.raises(DecodingError):
            decode_value(deep)


@given(data=st.binary(max_size=40))
def test_stored_state_that_is_broken_is_a_decoding_error(data: bytes) -> None:
    for read in (decode_value, split_state_field, read_timer_member, lambda raw: split_state_field(b"op\0" + raw)):
        try:
            read(data)
        except DecodingError:
            continue


@pytest.mark.parametrize("broken", [b"\xff\x00\x01", b"no zero", b"", b"\xff\x00\x92\x01\x02"])
def test_names_that_are_no_text_are_a_decoding_error(broken: bytes) -> None:
    for read in (split_state_field, read_timer_member):
        with pytest.raises(DecodingError):
            read(broken)


# What cannot be encoded.


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [object(), 2**64, -(2**63) - 1, "\ud800", 1j, nested(100_000), {1: object()}])
def test_a_value_that_cannot_be_encoded_is_named_with_its_index(value: Any) -> None:
    with pytest.raises(EncodingError, match="cannot be encoded") as caught:
        encode_batch(Batch(["fine", "fine", value]))

    assert caught.value.index == 2
    assert caught.value.hint
    assert len(str(caught.value)) < 600


def test_a_key_that_cannot_be_encoded_is_named_with_its_index() -> None:
    with pytest.raises(EncodingError) as caught:
        encode_batch(Batch(["a", "b"], keys=["k", 2**70]))

    assert caught.value.index == 1
    assert str(2**70) in str(caught.value)


def test_another_column_that_cannot_be_encoded_is_an_encoding_error() -> None:
    with pytest.raises(EncodingError):
        encode_batch(Batch(["a"], times=[2**70]))
    with pytest.raises(EncodingError):
        encode_batch(Batch(["a"], ids=["\ud800"]))


def test_state_that_cannot_be_encoded_is_an_encoding_error() -> None:
    with pytest.raises(EncodingError, match="object object"):
        encode_value({"a": object()})


@pytest.mark.parametrize("key", [2**70, "\ud800"])
def test_a_key_that_cannot_be_a_name_is_an_encoding_error(key: Any) -> None:
    with pytest.raises(EncodingError):
        state_field("op", key)
    with pytest.raises(EncodingError):
        timer_member(Timer("op", key, 5))


class Rude:
    def __repr__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, Rude(), [Rude()], 10**5_000, nested(50_000), "\ud800", {"a": {1, 2}}],
    ids=["long", "rude", "rude inside", "digits", "deep", "surrogate", "set"],
)
def test_any_value_can_be_shown_in_a_few_characters(value: Any) -> None:
    text = shown(value, 100)

    assert 0 < len(text) <= 100
    assert text.encode()


@given(value=VALUES)
def test_the_size_of_a_value_is_the_size_of_its_bytes(value: Any) -> None:
    assert check_encodable(value) == len(encode_value(value))


# State and timers.


def test_equal_looking_keys_have_different_states() -> None:
    keys: list[Any] = ["1", 1, b"1", ("1",), (1,), (b"1",), ((1,),), ()]

    assert len({state_field("op", key) for key in keys}) == len(keys)


@given(key=KEYS, due=TIMES)
def test_state_fields_and_timers_come_back(key: Any, due: int) -> None:
    timer = Timer("daily_delay", key, due)

    assert split_state_field(state_field("daily_delay", key)) == ("daily_delay", key)
    assert read_timer_member(timer_member(timer)) == timer


@given(one=st.tuples(st.sampled_from(["a", "ab"]), KEYS), two=st.tuples(st.sampled_from(["a", "ab"]), KEYS))
def test_state_fields_are_equal_only_for_equal_operator_and_key(one: tuple[str, Any], two: tuple[str, Any]) -> None:
    assert (state_field(*one) == state_field(*two)) == (one == two)
