"""What our keys hold and we have not written: told with the key, the field and what to do. Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from redis.exceptions import RedisError

from pipeline.codec import shown
from pipeline.errors import DecodingError, ForeignData

HINT: Final = (
    "another program, or a hand, has written to keys that begin with celeriac: on this Redis; put back what was there, "
    "or run the job under a new id, and give the other program another database"
)

_UNREADABLE: Final = (
    ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError, msgspec.MsgspecError,
    DecodingError,
)  # fmt: skip
_SHOWN: Final = 80
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})\Z")
"""As our scripts write one: they compare texts, so that no other form of a number is equal to it."""

_ENTRY: Final = re.compile(r"(0|[1-9][0-9]{0,15})-(0|[1-9][0-9]{0,15})\Z")

_NUMBERS: Final = (
    "head", "sub", "bytes", "rec", "term", "taken", "emitted", "filtered", "duplicate", "late", "dead", "held",
    "held_bytes", "deaths", "now", "until", "next", "replay", "made_at", "changed_at", "generation", "table", "dropped",
    "gone", "readers", "numbered",
)  # fmt: skip
"""Fields of our hashes that scripts count with, whatever the hash."""


@contextmanager
def ours(key: str) -> Iterator[None]:
    """While what a key of ours holds is read: raises ForeignData, naming the key, for what we cannot have written."""
    try:
        yield
    except _UNREADABLE as error:
        raise ForeignData(f"{key} holds what we did not write: {_words(error)}", hint=HINT) from error


def foreign_key(what: str) -> ForeignData:
    """For a key, or a key and a field, that a script refused to count with."""
    return ForeignData(f"a key of ours holds something else: {what}", hint=HINT)


def integer(fields: Mapping[str, str], name: str, default: int | None = None) -> int:
    """The number in a field. Raises ValueError that names the field."""
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if value is None:
        raise ValueError(f"there is no field {name!r}")
    if not _NUMBER.match(value):
        raise ValueError(f"the field {name!r} is {shown(value, _SHOWN)}, which is no number")
    return int(value)


def entry_id(text: str) -> str:
    """The id of an entry as our scripts make them. Raises ValueError."""
    if not _ENTRY.match(text):
        raise ValueError(f"{shown(text, _SHOWN)} is no id of an entry")
    return text


def text_of(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    """A hash of texts. Raises ValueError that names the field that is none."""
    return {_text(name, name): _text(name, value) for name, value in fields.items()}


def _text(name: bytes, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the field {shown(name, _SHOWN)} is no text: {shown(data, _SHOWN)}") from None


def _words(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"there is no field {shown(error.args[0], _SHOWN)}"
    return shown(str(error), 300)[1:-1] if len(str(error)) > 300 else str(error)


def suspects(client: Any, keys: Sequence[str]) -> str:
    """After a script could not count with what it found: the fields that are no numbers, by their keys, or nothing."""
    found = []
    for key in dict.fromkeys(keys):
        try:
            if client.type(key) != b"hash":
                continue
            values, place = client.hmget(key, _NUMBERS), client.hget(key, "pos")
        except RedisError:
            continue
        if place is not None and not _ENTRY.match(place.decode("utf-8", "replace")):
            found.append(f"the field 'pos' of {key} is {shown(place, _SHOWN)}, which is no id of an entry")
        for name, value in zip(_NUMBERS, values, strict=True):
            if value is not None and not _NUMBER.match(value.decode("utf-8", "replace")):
                found.append(f"the field {name!r} of {key} is {shown(value, _SHOWN)}, which is no number")
    return "; ".join(found[:5])
