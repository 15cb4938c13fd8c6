"""Keys as text that a person types or reads: `parse_key(key_text(key)) == key` for every key. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from pipeline.errors import ReadingError

_BYTES: Final = "base64"

_BEGINNINGS: Final = frozenset('-0123456789"[{ \t\r\n')
"""What an integer, a text, an array or an object of JSON begins with, or the space in front of it."""

_NUMERIC: Final = frozenset("-0123456789")


def key_text(key: Any) -> str:
    """One printable line: text as it is, or as JSON where it would be taken for something else; all else as JSON.

    An integer is its digits, a tuple a JSON array, bytes are `{"base64": "…"}`.
    """
    if type(key) is int:
        return str(key)
    if isinstance(key, str) and key and key.isprintable() and key == key.strip() and not _is_json(key):
        return key
    return json.dumps(_plain(key), ensure_ascii=not _is_printable(key))


def parse_key(text: str) -> Any:
    """The key that a text means: JSON of an integer, a text, an array or base64 if it is that, else the text itself.

    So 1 is the number, "1" with its quotes the text. Raises ReadingError for an array with a part that no key has.
    """
    if not _is_json(text):
        return text
    return _from_plain(msgspec.json.decode(text), text)


def key_texts(keys: Sequence[Any]) -> list[str]:
    """Each as of `key_text`; those of a whole table cost little, if all are texts or all are integers."""
    kinds = set(map(type, keys))
    if kinds == {int}:
        return list(map(str, keys))
    if kinds == {str} and _are_as_they_are(keys):
        return list(keys)
    return list(map(key_text, keys))


def are_plain(beginnings: Iterable[str]) -> bool:
    """True only if all texts whose first characters these are mean themselves."""
    return _BEGINNINGS.isdisjoint(beginnings)


def parse_keys(texts: Sequence[str]) -> list[Any]:
    """Each as of `parse_key`. Raises ReadingError for the first that is none."""
    beginnings = {text[:1] for text in texts}
    if are_plain(beginnings):
        return list(texts)
    if _NUMERIC.issuperset(beginnings):
        try:
            keys = list(map(msgspec.json.decode, texts))
        except (msgspec.MsgspecError, ValueError):
            return list(map(parse_key, texts))
        if set(map(type, keys)) == {int}:
            return keys
    return list(map(parse_key, texts))


def _are_as_they_are(texts: Sequence[str]) -> bool:
    """True only if each text is one that `key_text` leaves as it is."""
    if not all(texts) or not "".join(texts).isprintable():
        return False
    # The only space that is printable.
    return _BEGINNINGS.isdisjoint(map(itemgetter(0), texts)) and " " not in set(map(itemgetter(-1), texts))


def _is_json(text: str) -> bool:
    if text[:1] not in _BEGINNINGS:
        return False  # most keys: trying costs more than all else that is done to one
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return (isinstance(value, int) and not isinstance(value, bool)) or isinstance(value, str | list) or _is_bytes(value)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, dict) and list(value) == [_BYTES] and isinstance(value[_BYTES], str)


def _plain(key: Any) -> Any:
    if isinstance(key, tuple):
        return [_plain(part) for part in key]
    return {_BYTES: base64.b64encode(key).decode()} if isinstance(key, bytes) else key


def _from_plain(value: Any, text: str) -> Any:
    if isinstance(value, list):
        return tuple(_from_plain(part, text) for part in value)
    if _is_bytes(value):
        try:
            return base64.b64decode(value[_BYTES], validate=True)
        except (binascii.Error, ValueError) as error:
            raise ReadingError(f"the key {text} has no valid base64: {error}") from error
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ReadingError(
            f"the key {text} cannot be one: its parts are text, integers, arrays and base64",
            hint="a text that looks like JSON is given in double quotes of its own, as JSON text",
        )
    return value


def _is_printable(key: Any) -> bool:
    if isinstance(key, tuple):
        return all(map(_is_printable, key))
    return not isinstance(key, str) or key.isprintable()
