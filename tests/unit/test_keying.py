"""Keys and groups: fixed for ever, equal in every process, and only for types that compare as they hash."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import EncodingError
from pipeline.keying import GROUPS, canonical_bytes, check_keys, first_table, group_of

VECTORS: list[tuple[Any, bytes, int]] = [
    ("", b"", 0),
    ("a", b"a", 67),
    ("AA", b"AA", 189),
    ("ключ", "ключ".encode(), 26),
    (0, b"0", 33),
    (1, b"1", 183),
    ("1", b"1", 183),
    (b"1", b"1", 183),
    (-42, b"-42", 214),
    (2**70, str(2**70).encode(), 247),
    (b"\x00\xff", b"\x00\xff", 114),
    ((), b"", 0),
    (("a", 1), b"s1:ai1:1", 167),
    (("a", ("b", b"c")), b"s1:at8:s1:bb1:c", 168),
]


@pytest.mark.parametrize(("key", "data", "group"), VECTORS, ids=[repr(key) for key, _, _ in VECTORS])
def test_a_key_has_these_bytes_and_this_group_for_ever(key: Any, data: bytes, group: int) -> None:
    """A change here would lose all state that exists."""
    assert canonical_bytes(key) == data
    assert group_of(key) == group


@pytest.mark.parametrize("key", [True, False, 1.0, None, [1], {}, frozenset(), 1j, ("a", None), (1, (2, 1.5)), (True,)])
def test_other_types_are_refused_with_a_hint(key: Any) -> None:
    for call in (canonical_bytes, group_of, lambda one: check_keys(["fine", one])):
        with pytest.raises(EncodingError, match="a key must be text") as caught:
            call(key)
        assert caught.value.hint


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(EncodingError, match="not valid Unicode"):
        group_of("\ud800")


def test_an_integer_of_too_many_digits_is_refused() -> None:
    with pytest.raises(EncodingError, match="too many digits"):
        group_of(10**5_000)


def test_the_first_bad_key_is_named_by_its_index() -> None:
    with pytest.raises(EncodingError, match="None") as caught:
        check_keys(iter(["a", 1, b"", ("a",), None, 1.5]))

    assert caught.value.index == 4


def test_good_keys_pass() -> None:
    check_keys([])
    check_keys(["a", 1, b"x"])
    check_keys([("a", (1, b"x")), "b"])


PARTS = st.recursive(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.integers() | st.binary(max_size=6),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)
TUPLES = st.lists(PARTS, max_size=3).map(tuple)


@given(one=TUPLES, two=TUPLES)
def test_different_tuples_have_different_bytes(one: Any, two: Any) -> None:
    assert (canonical_bytes(one) == canonical_bytes(two)) == (one == two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("a", "b"), ("ab", "")),
        (("a", "b"), ("a", b"b")),
        (("1",), (1,)),
        (("s1:a",), ("a",)),
        ((("a",), "b"), ("a", ("b",))),
        (((),), ()),
        (("", ""), ("",)),
    ],
)
def test_tuples_that_look_alike_have_different_bytes(one: Any, two: Any) -> None:
    assert canonical_bytes(one) != canonical_bytes(two)


@given(key=PARTS)
def test_a_group_is_the_checksum_of_the_bytes(key: Any) -> None:
    assert group_of(key) == crc32(canonical_bytes(key)) % GROUPS


@pytest.mark.parametrize("partitions", [1, 2, 3, 8, 100, 256])
def test_the_first_table_gives_each_partition_a_range_of_about_equal_size(partitions: int) -> None:
    table = first_table(partitions)

    assert len(table) == GROUPS
    assert table == sorted(table)
    sizes = [table.count(partition) for partition in range(partitions)]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
