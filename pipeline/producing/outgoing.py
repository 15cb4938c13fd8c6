"""One record as it waits to be sent: checked and encoded when it is handed over, so later changes do not reach it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from pipeline.codec import encode_value, shown
from pipeline.errors import EncodingError
from pipeline.keying import canonical_bytes
from pipeline.records import MAX_TIME, MIN_TIME

ID_BYTES: Final = 1024
"""The longest id, in UTF-8."""

OVERHEAD_BYTES: Final = 448
"""What a record takes in this process besides its bytes: measured with tracemalloc, rounded up."""

_DEEPEST: Final = 32

_new: Final = tuple.__new__
"""Half the time of calling the class, and this is done for every record."""


class Outgoing(NamedTuple):
    """`hash` chooses the lane, or is None where any will do; `size` is what it takes of the buffer."""

    data: msgspec.Raw
    hash: int | None
    time_ms: int
    id: str | None
    size: int


@dataclass(frozen=True, slots=True)
class Packer:
    """Makes records for one source of one job. `record_bytes` is the job's limit for key and value together."""

    record_bytes: int
    with_keys: bool

    def pack(self, key: Any, value: Any, timestamp: int | datetime | None, id_: str | None, now_ms: int) -> Outgoing:
        """Raises EncodingError, which begins with the name of the field, for what cannot be stored or is too large."""
        if type(key) is str and key.isascii():  # most keys are, and this is done for every record
            key_bytes: bytes | None = key.encode()
        else:
            key_bytes = None if key is None else _key_bytes(key)
        try:
            data = encode_value({"key": key, "value": value} if self.with_keys else value)
        except EncodingError as error:
            raise _misfit(key, value, self.with_keys) from error
        size = len(data)
        if key_bytes is not None and not self.with_keys:
            size += len(key_bytes)
        if size > self.record_bytes:
            if key_bytes is not None:
                _check_size(key_bytes, self.record_bytes)
            raise EncodingError(
                f"value: the record has {size:,} bytes, more than the {self.record_bytes:,} that the job takes",
                hint="store large things elsewhere and send where they are",
            )
        held = size + OVERHEAD_BYTES
        if id_ is not None:
            held += _check_id(id_)
        time_ms = now_ms if timestamp is None else _milliseconds(timestamp)
        hash_ = None if key_bytes is None else crc32(key_bytes)
        return _new(Outgoing, (msgspec.Raw(data), hash_, time_ms, id_, held))


def _key_bytes(key: Any) -> bytes:
    try:
        return canonical_bytes(key)
    except EncodingError as error:
        raise EncodingError(f"key: {error}", hint="send text, an integer, bytes, a tuple of these, or None") from error


def _check_size(key: bytes, most: int) -> None:
    if len(key) > most:
        raise EncodingError(f"key: it has {len(key):,} bytes, more than the {most:,} that the job takes")


def _check_id(id_: object) -> int:
    if not isinstance(id_, str) or not id_:
        raise EncodingError(f"id: it must be text, not {shown(id_, 80)}", hint="leave it out for a record without one")
    try:
        size = len(id_.encode())
    except UnicodeEncodeError as error:
        raise EncodingError(f"id: {shown(id_, 80)} is not valid Unicode text") from error
    if size > ID_BYTES:
        raise EncodingError(f"id: it has {size:,} bytes, more than {ID_BYTES:,}", hint="send a digest of it")
    return size


def _milliseconds(timestamp: object) -> int:
    match timestamp:
        case bool():
            pass
        case int():
            if MIN_TIME < timestamp < MAX_TIME:
                return timestamp
        case datetime():
            if timestamp.tzinfo is None:
                raise EncodingError(
                    f"timestamp: {timestamp} has no time zone", hint="use datetime.now(timezone.utc), or .astimezone()"
                )
            return round(timestamp.timestamp() * 1000)
    raise EncodingError(
        f"timestamp: {shown(timestamp, 80)} is no time",
        hint="give whole milliseconds since 1970, or a datetime with its time zone",
    )


def _misfit(key: Any, value: Any, with_keys: bool) -> EncodingError:
    """The error for the innermost part that cannot be encoded, by its place: `value.items[3].price`."""
    place, part = _innermost(value, "value")
    reason = _reason(part)
    if not reason and with_keys:
        place, part = "key", key
        reason = _reason(part)
    return EncodingError(
        f"{place}: {shown(part, 80)} cannot be stored: {reason}",
        hint="send plain data: None, numbers, text, bytes, datetimes, lists and dicts",
    )


def _innermost(part: Any, place: str, depth: int = 0) -> tuple[str, Any]:
    children: list[tuple[str, Any]] = []
    if depth < _DEEPEST:  # what contains itself has no innermost part
        if isinstance(part, dict):
            children = [(f"{place}.{shown(name, 80).strip(chr(39))}", item) for name, item in part.items()]
        elif isinstance(part, list | tuple):
            children = [(f"{place}[{index}]", item) for index, item in enumerate(part)]
    for child_place, child in children:
        if _reason(child):
            return _innermost(child, child_place, depth + 1)
    return place, part


def _reason(part: Any) -> str:
    """Why the part cannot be encoded, or nothing."""
    try:
        encode_value(part)
    except EncodingError as error:
        return str(error.__cause__ or error)
    return ""
