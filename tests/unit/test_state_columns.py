"""Pages of state by column: the same as row by row, for every state and key; no row is taken for its neighbour."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.codec import decode_value, encode_value, split_state_field, state_field
from pipeline.errors import DecodingError, EncodingError
from pipeline.keying import group_of, groups_of
from pipeline.reading.keytext import key_text, key_texts, parse_key, parse_keys
from pipeline.savepoints.originals import original_page
from pipeline.savepoints.rows import hide, read_states, show, state_columns
from pipeline.savepoints.tables import SCHEMAS
from pipeline.store.ahead import begun
from pipeline.store.pairs import Pairs

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    TEXT,
    st.binary(max_size=8),
    st.just(datetime(2026, 1, 2, tzinfo=UTC)),
)
STATES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.integers(0, 9), inner, max_size=3),
    max_leaves=12,
)
PLAIN_KEYS = st.one_of(TEXT, st.integers(-(2**63), 2**63 - 1), st.binary(max_size=8))
KEYS = st.recursive(PLAIN_KEYS, lambda part: st.lists(part, max_size=3).map(tuple), max_leaves=4)
STAGES = {"counts": "by_word", "ü": "by_line"}
OPERATORS = st.sampled_from(list(STAGES))


def a_page(states: Any = STATES, keys: Any = KEYS) -> Any:
    """Fields and what they hold: mostly alike, as in a real page, or of all kinds."""
    return st.lists(st.tuples(OPERATORS, keys, states), max_size=12)


PAGES = st.one_of(
    a_page(),
    a_page(st.integers(0, 99), TEXT),
    a_page(st.lists(st.integers(0, 9) | st.floats(), max_size=4), st.text("abc-1 ", max_size=4)),
    a_page(st.integers(0, 99), st.integers(-99, 99)),
    a_page(st.integers(0, 99), st.integers(250, 260).map("x".__mul__)),
)


def columns_of(page: list[tuple[str, Any, Any]]) -> dict[str, list[Any]]:
    fields = [state_field(operator, key) for operator, key, _ in page]
    operators, texts, values, packed = state_columns(fields, [encode_value(state) for *_, state in page])
    groups = [group_of(key) for _, key, _ in page]
    return {"operator": operators, "group": groups, "key": texts, "value": values, "packed": packed}


@given(PAGES)
def test_a_page_is_what_its_rows_are_one_by_one(page: list[tuple[str, Any, Any]]) -> None:
    found = columns_of(page)

    shown = [show(encode_value(state)) for *_, state in page]
    assert found["operator"] == [operator for operator, *_ in page]
    assert found["key"] == [key_text(key) for _, key, _ in page]
    assert found["value"] == [each.value for each in shown]
    assert found["packed"] == [each.packed for each in shown]


@given(PAGES)
def test_what_was_a_page_is_read_back_to_the_byte(page: list[tuple[str, Any, Any]]) -> None:
    found = read_states(columns_of(page))

    assert found is not None
    keys, fields, datas = found
    assert list(map(repr, keys)) == [repr(key) for _, key, _ in page]
    assert fields == [state_field(operator, key) for operator, key, _ in page]
    assert datas == [encode_value(state) for *_, state in page]


def batch_of(columns: dict[str, list[Any]]) -> pa.RecordBatch:
    """As an original is read."""
    columns = {"stage": list(map(STAGES.get, columns["operator"])), **columns}
    arrays = [pa.array(columns[column.name], column.type) for column in SCHEMAS["state"]]
    arrays[:2] = [array.dictionary_encode() for array in arrays[:2]]
    return pa.RecordBatch.from_arrays(arrays, SCHEMAS["state"].names)


@given(PAGES, st.integers(0, 3))
def test_an_original_is_to_the_byte_what_was_written(page: list[tuple[str, Any, Any]], cut: int) -> None:
    found = original_page(batch_of(columns_of(page)).slice(cut), STAGES)

    page = page[cut:]
    assert found is not None
    assert found.counts == Counter(operator for operator, *_ in page)
    words = [word for operator, key, state in page for word in (state_field(operator, key), encode_value(state))]
    part = bytes(Pairs(*found.pieces).part(0, len(page)))
    assert part == begun(words, 0).removeprefix(b"*%d" % len(words))


@given(PAGES, st.sampled_from([{"counts": 4, "ü": 4}, {"counts": 4, "ü": 2}, {"ü": 2}, {}]))
def test_an_original_is_dealt_out_to_the_stages_of_its_operators(
    page: list[tuple[str, Any, Any]], stages: dict[str, int]
) -> None:
    page = sorted(page, key=lambda row: group_of(row[1]))
    found = original_page(batch_of(columns_of(page)), STAGES)
    assert found is not None

    dealt: dict[tuple[int, int], bytes] = {}
    for part in found.parts(stages):
        for group, start, stop in part.runs:
            assert (part.stage, group) not in dealt
            dealt[part.stage, group] = bytes(part.pairs.part(start, stop))

    expected: dict[tuple[int, int], list[bytes]] = {}
    for operator, key, state in page:
        if operator in stages:
            words = expected.setdefault((stages[operator], group_of(key)), [])
            words += (state_field(operator, key), encode_value(state))
    assert dealt == {at: begun(words, 0).removeprefix(b"*%d" % len(words)) for at, words in expected.items()}


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": [group_of("a"), None]},
        {"key": [None, "b"]},
        {"key": ["zebra", "b"]},
        {"group": [group_of("b"), group_of("b")]},
        {"value": ["1,2", ""]},
        {"value": ["{", "2"]},
        {"value": [None, "2"]},
        {"packed": [b"\x01", None]},
        {"value": [None, "2"], "packed": [b"\xc1", None]},
    ],
    ids=str,
)
def test_a_page_with_a_row_that_is_wrong_is_none(wrong: dict[str, list[Any]]) -> None:
    page = columns_of([("counts", "a", 1), ("counts", "b", 2)])

    assert read_states(page) is not None
    assert read_states({**page, **wrong}) is None
    assert original_page(batch_of(page), STAGES) is not None
    assert original_page(batch_of({**page, **wrong}), STAGES) is None


@pytest.mark.parametrize(
    "wrong",
    [{"operator": ["counts", "other"]}, {"operator": ["counts", None]}, {"stage": ["by_word", "elsewhere"]}],
    ids=str,
)
def test_an_original_of_an_operator_that_is_not_there_is_none(wrong: dict[str, list[Any]]) -> None:
    page = columns_of([("counts", "a", 1), ("counts", "b", 2)])

    assert original_page(batch_of({**page, **wrong}), STAGES) is None


@pytest.mark.parametrize(
    "datas",
    [[b"\x92\x01", b"\x02"], [b"\x92", b"\x01\x02"], [b"\x01\x02", b""], [b"\xc1", b"\x01"], [b"\x01", b"\x01\x01"]],
    ids=repr,
)
def test_states_that_only_make_sense_together_are_refused(datas: list[bytes]) -> None:
    with pytest.raises(DecodingError):
        state_columns([state_field("counts", key) for key in ("a", "b")], datas)


@pytest.mark.parametrize("field", [b"counts", b"counts\0", b"counts\0\xc1", b"\xff\0\x01", b"counts\0\x80"], ids=repr)
def test_a_field_that_is_none_is_refused(field: bytes) -> None:
    with pytest.raises(DecodingError):
        split_state_field(field)
    with pytest.raises(DecodingError):
        state_columns([state_field("counts", "a"), field], [b"\x01", b"\x01"])


def test_bytes_that_we_would_write_otherwise_stay_as_they_are() -> None:
    datas = [b"\xcd\x00\x07", b"\xca\x3f\x80\x00\x00", b"\x07"]

    _, _, values, packed = state_columns([state_field("counts", key) for key in "abc"], datas)

    assert (values, packed) == ([None, None, "7"], [*datas[:2], None])
    assert [hide(value, data) for value, data in zip(values, packed, strict=True)] == datas
    assert list(map(decode_value, datas)) == [7, 1.0, 7]


@given(st.one_of(st.lists(each, max_size=8) for each in (KEYS, TEXT, st.integers(-9, 2**64), st.binary())))
def test_keys_of_a_table_are_written_read_and_placed_as_each_of_them(keys: list[Any]) -> None:
    texts = key_texts(keys)

    assert texts == list(map(key_text, keys))
    assert list(map(repr, parse_keys(texts))) == list(map(repr, keys))
    assert groups_of(keys) == list(map(group_of, keys))


@given(st.lists(st.sampled_from(["1", "-1", "01", "1e5", "1.5", "x", "", "-", "[1]", " 1", '"1"', "12x"]), max_size=3))
def test_what_looks_like_a_number_is_one_only_if_it_is_one_by_itself(texts: list[str]) -> None:
    assert list(map(repr, parse_keys(texts))) == [repr(parse_key(text)) for text in texts]


@pytest.mark.parametrize("keys", [["a", 1.5], [True], [1, True], ["\ud800"], [None]], ids=repr)
def test_what_is_no_key_has_no_group(keys: list[Any]) -> None:
    with pytest.raises(EncodingError):
        groups_of(keys)
