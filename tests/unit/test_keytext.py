"""Keys as people type and read them: no two keys look the same, and what is shown can be typed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PipelineError, ReadingError
from pipeline.reading.keytext import key_text, parse_key
from pipeline.recomputing.keyfile import MOST_KEYS, read_keys

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(TEXT, st.integers(-(2**63), 2**64 - 1), st.binary())
KEYS = st.recursive(SCALARS, lambda part: st.lists(part, max_size=4).map(tuple), max_leaves=8)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("abc", "abc"),
        ("a b", "a b"),
        ("é", "é"),
        (1, "1"),
        ("1", '"1"'),
        ("-7", '"-7"'),
        ("", '""'),
        ('"', '"'),
        ('"x"', '"\\"x\\""'),
        ("true", "true"),
        ("1.5", "1.5"),
        ("[1]", '"[1]"'),
        ("a\nb", '"a\\nb"'),
        ("\x1b[2J", '"\\u001b[2J"'),
        (" x", '" x"'),
        (("a", 1), '["a", 1]'),
        (b"\x00\xff", '{"base64": "AP8="}'),
        (("é", b""), '["é", {"base64": ""}]'),
        ((), "[]"),
    ],
)
def test_a_key_has_one_text_and_that_text_is_the_key(key: Any, text: str) -> None:
    assert key_text(key) == text
    assert parse_key(text) == key
    assert type(parse_key(text)) is type(key)


@given(KEYS)
def test_what_is_shown_can_be_typed(key: Any) -> None:
    text = key_text(key)

    assert parse_key(text) == key
    assert type(parse_key(text)) is type(key)
    assert text.isprintable()


@given(TEXT)
def test_whatever_is_typed_is_a_key_or_one_message(text: str) -> None:
    with suppress(ReadingError):
        assert isinstance(parse_key(text), str | int | bytes | tuple)


@pytest.mark.parametrize("text", ["[1.5]", "[true]", '["a", null]', '[{"a": 1}]', '{"base64": "?"}'])
def test_a_key_with_an_impossible_part_is_refused(text: str) -> None:
    with pytest.raises(ReadingError):
        parse_key(text)


def test_a_file_of_keys_may_begin_with_a_mark_and_a_key_may_hold_what_ends_a_line_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_bytes('\ufeffcarl\r\n"a\u2028b"\n\nx\x85y\n7'.encode())

    assert read_keys(path) == {"carl", "a\u2028b", "x\x85y", 7}


def test_of_a_file_with_too_many_keys_no_more_is_read_than_that_is_known(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(MOST_KEYS + 1)) + 100_000 * b"x" + b"\xff")

    with pytest.raises(PipelineError, match="more than 50,000 keys, which is the most"):
        read_keys(path)
    path.write_bytes(b"a\n" + 100_000 * b"x" + b"\xff")
    with pytest.raises(PipelineError, match=r"keys.txt cannot be read: .*can't decode byte 0xff"):
        read_keys(path)
