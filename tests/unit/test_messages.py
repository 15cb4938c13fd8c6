"""In-band messages: a closed union, read strictly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DecodingError
from pipeline.messages import Barrier, Data, EndOfInput, Header, Release, Table, Watermark, decode_header, encode_header
from pipeline.records import MAX_TIME, MIN_TIME

NUMBERS = st.integers(0, 2**53 - 1)
TIMES = st.integers(MIN_TIME, MAX_TIME)
NAMES = st.text(st.characters(codec="ascii", min_codepoint=32), min_size=1, max_size=10)
HEADERS = (
    st.builds(Data, NAMES, NUMBERS, NUMBERS, st.none() | TIMES, NUMBERS, st.lists(NUMBERS, max_size=3).map(tuple))
    | st.builds(Watermark, NAMES, TIMES)
    | st.builds(EndOfInput, NAMES)
    | st.builds(Release, NAMES, st.booleans(), NUMBERS, NUMBERS)
    | st.builds(Barrier, NUMBERS)
    | st.builds(Table, NUMBERS)
)


@given(header=HEADERS)
def test_every_header_comes_back_as_it_was(header: Header) -> None:
    assert decode_header(encode_header(header)) == header


@pytest.mark.parametrize(
    ("text", "header"),
    [
        (b'["D","0.1",7,3,null,1,[]]', Data("0.1", 7, 3, None, 1)),
        (b'["D","12",1,500,-5,2,[0,3]]', Data("12", 1, 500, -5, 2, (0, 3))),
        (b'["W","0.1",9007199254740991]', Watermark("0.1", MAX_TIME)),
        (b'["R","1700000000000-0",true,12,3400]', Release("1700000000000-0", True, 12, 3400)),
        (b'["E","source"]', EndOfInput("source")),
        (b'["B",4]', Barrier(4)),
        (b'["T",2]', Table(2)),
    ],
)
def test_what_scripts_write_is_what_is_read(text: bytes, header: Header) -> None:
    assert decode_header(text) == header


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"{}",
        b"[]",
        b'["X",1]',
        b'["d","0.1",7,3,null,1,[]]',
        b'["D","0.1",7]',
        b'["D",1,7,3,null,1,[]]',
        b'["D","0.1","7",3,null,1,[]]',
        b'["D","0.1",7.5,3,null,1,[]]',
        b'["W","0.1",null]',
        b'["E"]',
        b'["E","a"',
        b'["E","a"] x',
        b'["E","\xff"]',
        b"[" * 100_000,
        b'["E","a",' + b"[" * 100_000,
        b"\x00\xff",
    ],
)
def test_anything_else_is_a_decoding_error(text: bytes) -> None:
    with pytest.raises(DecodingError, match="unreadable header"):
        decode_header(text)


def test_an_unknown_kind_shows_how_it_begins_and_no_more() -> None:
    with pytest.raises(DecodingError) as caught:
        decode_header(b'["Z","' + b"x" * 10_000)

    assert '["Z"' in str(caught.value)
    assert len(str(caught.value)) < 400


@given(data=st.binary(max_size=40))
def test_random_bytes_are_a_decoding_error_or_a_header(data: bytes) -> None:
    try:
        header = decode_header(data)
    except DecodingError:
        return
    assert isinstance(header, Data | Watermark | EndOfInput | Barrier | Table)
