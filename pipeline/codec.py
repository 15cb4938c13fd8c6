"""Bytes of payloads, keys and state: MessagePack behind a version byte and a codec byte. Never pickle.

Values are data: None, bool, int (64 bit), float, str, bytes, list, dict, datetime. Types that MessagePack does not
know apart arrive as the nearest of these (a tuple as a list, a dataclass as a dict); keys keep their type exactly.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from functools import cache
from itertools import repeat
from operator import add
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import fields as struct_fields

from pipeline.errors import DecodingError, EncodingError
from pipeline.records import MAX_TIME, MIN_TIME, Batch, Timer

VERSION: Final = 1
_COLUMNS: Final = 1
_COLUMNS_WITH_TUPLE_KEYS: Final = 2


_NO_KEYS: Final = frozenset({list, dict})
"""What MessagePack has and no table takes as a key."""


class _Columns(msgspec.Struct, array_like=True):
    values: list[Any]
    keys: list[Any] | None
    times: list[Annotated[int, msgspec.Meta(ge=MIN_TIME, le=MAX_TIME)]] | None
    ids: list[str] | None
    faults: dict[int, str]


def _no_extension(code: int, _data: memoryview) -> Any:
    """We write none but times; what stood for one could not be a key either."""
    raise ValueError(f"an extension of the type {code}")


_ARRAY: Final = b"\xdd"
"""How an array begins whose length stands in the next 4 bytes."""

_encoder = msgspec.msgpack.Encoder()
_columns = msgspec.msgpack.Decoder(_Columns, ext_hook=_no_extension)
_anything = msgspec.msgpack.Decoder(ext_hook=_no_extension)

_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)

# What msgspec raises for what it cannot encode: unknown types, integers over 64 bit, lone surrogates, deep nesting.
_UNENCODABLE = (TypeError, OverflowError, ValueError, RecursionError, msgspec.MsgspecError)


def encode_batch(batch: Batch) -> bytes:
    """The payload of a Data entry. Raises EncodingError with the index of the first record that cannot be encoded."""
    keys = batch.keys
    codec = _COLUMNS_WITH_TUPLE_KEYS if keys is not None and tuple in set(map(type, keys)) else _COLUMNS
    columns = _Columns(batch.values, keys, batch.times, batch.ids, batch.faults)
    try:
        return bytes((VERSION, codec)) + _encoder.encode(columns)
    except _UNENCODABLE as error:
        for index, value in enumerate(batch.values):
            check_encodable(value, index)
        for index, key in enumerate(keys or ()):
            check_encodable(key, index)
        raise EncodingError(f"a batch cannot be encoded: {error}") from error


def decode_batch(payload: bytes) -> Batch:
    """Raises DecodingError for anything that `encode_batch` did not make.

    What it takes in memory is at most 80 times the size of the payload: nothing in it can claim or inflate to more.
    """
    return _decoded(payload, _columns)


def decoder_of(kind: Any) -> Callable[[bytes], Batch]:
    """`decode_batch` for values that are all of `kind`, a type as msgspec has them: they come as that, and sooner.

    It raises DecodingError for all others, too.
    """
    fields = [(field.name, list[kind] if field.name == "values" else field.type) for field in struct_fields(_Columns)]
    columns = msgspec.defstruct("_ColumnsOfKind", fields, array_like=True)
    decoder = msgspec.msgpack.Decoder(columns, ext_hook=_no_extension)
    return lambda payload: _decoded(payload, decoder)


def _decoded(payload: bytes, decoder: msgspec.msgpack.Decoder[Any]) -> Batch:
    if len(payload) < 3 or payload[0] != VERSION or payload[1] not in (_COLUMNS, _COLUMNS_WITH_TUPLE_KEYS):
        raise DecodingError(f"a payload of an unknown version or codec; it begins with {payload[:2]!r}")
    try:
        columns = decoder.decode(memoryview(payload)[2:])
    except _UNREADABLE as error:
        raise DecodingError(f"a payload cannot be read: {error}") from error
    keys = columns.keys
    count = len(columns.values)
    if any(column is not None and len(column) != count for column in (keys, columns.times, columns.ids)):
        raise DecodingError("a payload has columns of unequal length")
    if keys is not None:
        if payload[1] == _COLUMNS_WITH_TUPLE_KEYS:
            keys = [_hashable(key) for key in keys]
        elif not _NO_KEYS.isdisjoint(map(type, keys)):
            raise DecodingError("a payload has a key that is a list or a dict")
    return Batch(columns.values, keys, columns.times, columns.ids, columns.faults)


def check_encodable(value: Any, index: int = -1) -> int:
    """The encoded size of one value in bytes. Raises EncodingError, naming value and type."""
    try:
        return len(_encoder.encode(value))
    except _UNENCODABLE as error:
        raise EncodingError(
            f"a value cannot be encoded: {shown(value, 200)}: {error}",
            index,
            hint="emit plain data: numbers, text, bytes, lists and dicts",
        ) from error


def shown(value: Any, characters: int) -> str:
    """At most so many characters that show a value, whatever it is: huge, endlessly nested, without a proper repr."""
    brief = reprlib.Repr()
    brief.maxlist = brief.maxtuple = brief.maxdict = brief.maxset = brief.maxfrozenset = 10
    brief.maxlevel, brief.maxstring, brief.maxother = 4, characters, characters
    try:
        text = brief.repr(value)
    except ValueError:  # an integer of more digits than Python converts
        text = f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= characters else text[: characters - 1] + "…"


def encode_value(value: Any) -> bytes:
    """State of one key. Raises EncodingError."""
    try:
        return _encoder.encode(value)
    except _UNENCODABLE:
        check_encodable(value)
        raise


def encode_state_fields(operators: Sequence[str], keys: Sequence[Any]) -> list[bytes]:
    """Each as of `state_field`. Raises EncodingError for the first key that cannot be encoded."""
    names = {operator: operator.encode() + b"\0" for operator in set(operators)}
    return list(map(add, map(names.__getitem__, operators), encode_values(keys)))


def encode_values(values: Sequence[Any]) -> list[bytes]:
    """Each as `encode_value` does. Raises EncodingError for the first that cannot be encoded."""
    encode = _encoder.encode
    try:
        return [encode(value) for value in values]
    except _UNENCODABLE:
        for value in values:
            check_encodable(value)
        raise


def decode_value(data: bytes) -> Any:
    """Raises DecodingError."""
    try:
        return _anything.decode(data)
    except _UNREADABLE as error:
        raise DecodingError(f"stored state cannot be read: {error}") from error


def decode_values(datas: Sequence[bytes], kind: Any) -> list[Any]:
    """What each holds, if all hold this type. Raises DecodingError otherwise.

    They are read as one: where the end of each is is not checked. It is by encoding them again, and comparing.
    """
    try:
        return _column_of(kind).decode(_ARRAY + len(datas).to_bytes(4, "big") + b"".join(datas))
    except _UNREADABLE as error:
        raise DecodingError(f"stored states cannot be read as one: {error}") from error


@cache
def _column_of(kind: Any) -> msgspec.msgpack.Decoder[list[Any]]:
    return msgspec.msgpack.Decoder(list[kind], ext_hook=_no_extension)


def state_field(operator: str, key: Any) -> bytes:
    """The name of a key's state in the hash of its group: distinct for `1` and `"1"`. Raises EncodingError."""
    try:
        return operator.encode() + b"\0" + _encoder.encode(key)
    except _UNENCODABLE:
        check_encodable(key)
        raise


def state_fields(operator: str, keys: Sequence[Any]) -> list[bytes]:
    """Of each key as `state_field` does. Raises EncodingError for the first key that cannot be encoded."""
    return list(map((operator.encode() + b"\0").__add__, encode_values(keys)))


def split_state_field(field: bytes) -> tuple[str, Any]:
    """(operator, key) of a state field. Raises DecodingError."""
    operator, found, key = field.partition(b"\0")
    if not found:
        raise DecodingError(f"no state field: {field[:80]!r}")
    return _operator(operator), _hashable(decode_value(key))


def split_state_fields(fields: Sequence[bytes]) -> tuple[list[str], list[Any]]:
    """(operators, keys), of each field as of `split_state_field`. Raises DecodingError for the first that is none."""
    first, found, _ = fields[0].partition(b"\0") if fields else (b"", b"", b"")
    size = len(first) + 1
    try:
        # Of one operator, as most pages are.
        if found and all(map(bytes.startswith, fields, repeat(first + found))):
            operators = [first.decode()] * len(fields)
            keys = list(map(_anything.decode, [field[size:] for field in fields]))
        else:
            parts = [field.partition(b"\0") for field in fields]
            names = {name: name.decode() for name in {part[0] for part in parts}}
            operators = [names[part[0]] for part in parts]
            keys = list(map(_anything.decode, [part[2] for part in parts]))
    except _UNREADABLE:
        for field in fields:
            split_state_field(field)
        raise
    if not _PLAIN_KEYS.issuperset(map(type, keys)):
        keys = list(map(_hashable, keys))
    return operators, keys


def key_field(key: Any) -> bytes:
    """The name of a key in a hash by keys: distinct for `1` and `"1"`. Raises EncodingError."""
    return state_field("", key)[1:]


def read_key_field(field: bytes) -> Any:
    """Raises DecodingError."""
    return _hashable(decode_value(field))


def timer_member(timer: Timer) -> bytes:
    """The member of the timer index: one per (operator, key, due). Raises EncodingError."""
    try:
        return timer.operator.encode() + b"\0" + _encoder.encode((timer.key, timer.due))
    except _UNENCODABLE:
        check_encodable((timer.key, timer.due))
        raise


def read_timer_member(member: bytes) -> Timer:
    """Raises DecodingError."""
    operator, found, rest = member.partition(b"\0")
    pair = decode_value(rest) if found else None
    if not isinstance(pair, list) or len(pair) != 2 or type(pair[1]) is not int or not MIN_TIME <= pair[1] <= MAX_TIME:
        raise DecodingError(f"no timer: {member[:80]!r}")
    return Timer(_operator(operator), _hashable(pair[0]), pair[1])


def _operator(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise DecodingError(f"no name of an operator: {name[:80]!r}") from error


_PLAIN_KEYS: Final = frozenset({str, int, bytes})


def _hashable(key: Any) -> Any:
    """Raises DecodingError for what is no key, or one that is nested without end."""
    if type(key) in _PLAIN_KEYS:
        return key
    if isinstance(key, dict):
        raise DecodingError("a key is, or holds, a dict")
    try:
        return tuple(_hashable(part) for part in key) if isinstance(key, list) else key
    except RecursionError as error:
        raise DecodingError("a key is nested without end") from error
