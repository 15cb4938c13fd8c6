"""Keys: which types may be keys, their canonical bytes, and key -> key group -> partition.

`group = crc32(canonical bytes) % 256` never changes, so it is equal in every process, version and engine.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, Final
from zlib import crc32

from pipeline.errors import EncodingError

GROUPS: Final = 256
"""Number of key groups of a keyed stage. Fixed for the life of all state."""

_SCALARS: Final = frozenset({str, int, bytes})


def canonical_bytes(key: Any) -> bytes:
    """The bytes that a key is hashed by. Version 1 of the encoding:

    text is UTF-8, bytes are themselves, an integer is its decimal text. A tuple is the concatenation of its
    parts, each as a letter for its type (s, b, i, t), the length of its canonical bytes in decimal, a colon,
    and the bytes. Equal bytes are not equal keys: `1` and `"1"` share a group and have two states.

    Raises EncodingError for every other type, `bool` and `float` included (they compare equal to integers).
    """
    kind = type(key)
    if kind is str:
        try:
            return key.encode()  # type: ignore[no-any-return]
        except UnicodeEncodeError as error:
            raise EncodingError(f"the key {key!r} is not valid Unicode text") from error
    if kind is int:
        try:
            return str(key).encode()
        except ValueError as error:
            raise EncodingError("a key is an integer of too many digits", hint="use a shorter key") from error
    if kind is bytes:
        return key  # type: ignore[no-any-return]
    if kind is tuple:
        return b"".join(_part(part) for part in key)
    raise EncodingError(
        f"a key must be text, an integer, bytes or a tuple of these; {reprlib.repr(key)} is {kind.__name__}",
        hint="convert it in key_by, for example with str(...)",
    )


def _part(part: Any) -> bytes:
    letter = {str: b"s", bytes: b"b", int: b"i", tuple: b"t"}.get(type(part), b"")
    data = canonical_bytes(part)
    return letter + str(len(data)).encode() + b":" + data


def group_of(key: Any) -> int:
    """The key group, 0 <= group < GROUPS. Raises EncodingError as `canonical_bytes` does."""
    return crc32(canonical_bytes(key)) % GROUPS


def groups_of(keys: Sequence[Any]) -> list[int]:
    """The key group of each. Raises EncodingError for the first whose type may not be a key."""
    kinds = set(map(type, keys))
    if kinds == {bytes}:
        return [code % GROUPS for code in map(crc32, keys)]
    texts = map(str, keys) if kinds == {int} else keys
    try:
        return [crc32(data) % GROUPS for data in map(str.encode, texts)]
    except (TypeError, ValueError):  # others than texts or integers only, or one that is none
        return list(map(group_of, keys))


def check_keys(keys: Iterable[Any]) -> None:
    """Raises EncodingError, with the index, for the first key whose type may not be a key."""
    keys = keys if isinstance(keys, list) else list(keys)
    if set(map(type, keys)) <= _SCALARS:
        return
    for index, key in enumerate(keys):
        if type(key) not in _SCALARS:
            try:
                canonical_bytes(key)
            except EncodingError as error:
                raise EncodingError(str(error), index, error.hint) from error


def groups_of_partition(partition: int, partitions: int) -> list[int]:
    """The key groups that one of so many partitions serves, by `first_table`; none for one that is too many."""
    return [group for group, owner in enumerate(first_table(partitions)) if owner == partition]


def first_table(partitions: int) -> list[int]:
    """The group -> partition table of a keyed stage with so many partitions: contiguous ranges of groups."""
    return [group * partitions // GROUPS for group in range(GROUPS)]
