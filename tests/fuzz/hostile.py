"""What an enemy, or a broken disk, may put where our parsers read: bytes, MessagePack, JSON, and real things bent.

`CELERIAC_FUZZ_EXAMPLES=200000 python -m pytest tests/fuzz` tries more than the few examples of every day.
"""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES: Final = int(os.environ.get("CELERIAC_FUZZ_EXAMPLES", "0"))
"""Of each pure property; 0 for the few of every day."""


def tried(few: int, cost: int = 1) -> settings:
    """So many examples every day; in a long run EXAMPLES, divided by what one costs against a pure one."""
    examples = max(few, EXAMPLES // cost) if EXAMPLES else few
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(max_examples=examples, deadline=None, suppress_health_check=quiet)


# MessagePack by hand: honest and lying.

_LENGTHS: Final = (0, 1, 2, 3, 255, 65_535, 2**31, 2**32 - 1)
_ODD: Final = (
    b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\0" * 7, b"\xcb\x7f\xf8" + b"\0" * 6, b"\xca\x7f\x80\0\0", b"\xc0", b"\xc1",
    b"\xc2", b"\xc3", b"\x90", b"\x80", b"\xe0", b"\x07", b"\xa1k",
)  # fmt: skip


@st.composite
def msgpack(draw: st.DrawFn, depth: int = 3) -> bytes:
    """One value, often a broken one: lengths that lie, extensions, times, text that is no UTF-8, doubled keys."""
    kinds = ["odd", "raw", "number", "text", "liar", "extension", "time"] + ["list", "map", "long"] * (depth > 0)
    match draw(st.sampled_from(kinds)):
        case "odd":
            return draw(st.sampled_from(_ODD))
        case "raw":
            return draw(st.binary(max_size=12))
        case "number":
            return draw(st.sampled_from([b"\xcb", b"\xcf", b"\xd3"])) + draw(st.binary(min_size=8, max_size=8))
        case "text":
            text = draw(st.binary(max_size=20))
            return bytes([0xA0 + len(text)]) + text
        case "liar":
            width, kind = draw(st.sampled_from([(1, 0xD9), (1, 0xC4), (4, 0xDB), (4, 0xC6), (4, 0xC9)]))
            return bytes([kind]) + _length(draw, width) + draw(st.binary(max_size=20))
        case "extension":
            raw = draw(st.binary(max_size=12))
            return bytes([0xC7, len(raw), draw(st.integers(0, 255))]) + raw
        case "time":
            return draw(st.sampled_from([b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff"])) + draw(st.binary(max_size=12))
        case kind:
            parts = [draw(msgpack(depth - 1)) for _ in range(draw(st.integers(0, 4)))]
            if kind == "list":
                return bytes([0x90 + len(parts)]) + b"".join(parts)
            if kind == "map":
                return bytes([0x80 + len(parts) // 2]) + b"".join(parts)
            return draw(st.sampled_from([b"\xdd", b"\xdf"])) + _length(draw, 4) + b"".join(parts)


def _length(draw: st.DrawFn, width: int) -> bytes:
    return (draw(st.sampled_from(_LENGTHS)) % (1 << 8 * width)).to_bytes(width, "big")


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Five columns behind a version and a codec, some of them no columns; or any bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=60))
    parts = [draw(st.sampled_from([b"\x01\x01\x95", b"\x01\x02\x95"]))]
    rows = draw(st.integers(0, 3))
    for empty in (b"\x90", b"\xc0", b"\xc0", b"\xc0", b"\x80"):
        match draw(st.sampled_from(["rows", "rows", "empty", "any"])):
            case "rows" if empty != b"\x80":
                parts.append(bytes([0x90 + rows]) + b"".join(draw(msgpack(2)) for _ in range(rows)))
            case "any":
                parts.append(draw(msgpack()))
            case _:
                parts.append(empty)
    return b"".join(parts)


# Real things, bent.


@st.composite
def bent(draw: st.DrawFn, real: st.SearchStrategy[bytes]) -> bytes:
    """A real thing with some bytes flipped, cut out, doubled, put in, or another one's end."""
    data = bytearray(draw(real))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "cut", "drop", "double", "insert", "splice"])):
            case "flip" if at < len(data):
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at:]
            case "drop":
                del data[at : at + draw(st.integers(1, 8))]
            case "double":
                data[at:at] = data[at : at + 16]
            case "insert":
                data[at:at] = draw(st.binary(max_size=6) | msgpack(1))
            case "splice":
                other = draw(real)
                data[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(data)


# What somebody may write into a field that holds a number, a name, JSON.

_FIELDS: Final = (
    b"", b"abc", b"-1", b"1.5", b"nan", b"inf", b"1e400", b"9" * 400, b"9" * 5000, b"\xff\xfe", b"1-0", b"-", b"|",
    b"a|b|c", b"1|2", b"..", b"{}", b"[]", b"null", b'{"a":', b"0x10", b" 7 ", b"1_0", b"\0", b"[" * 3000, b"\xd9\xa3",
    b"running", b"18446744073709551615-18446744073709551615", b"1:nonce",
)  # fmt: skip


@st.composite
def fields(draw: st.DrawFn) -> bytes:
    """What stands in a field where a number, a name or JSON should."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=30))
    return draw(st.sampled_from(range(len(_FIELDS))).map(_FIELDS.__getitem__))


JSON_VALUES: Final[st.SearchStrategy[Any]] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
