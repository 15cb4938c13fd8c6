"""What the model of Redis holds: keys of six types, deadlines of keys, and the ids of streams. Knows no commands."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Id: TypeAlias = tuple[int, int]

FIRST: Final[Id] = (0, 0)
LAST: Final[Id] = ((1 << 64) - 1, (1 << 64) - 1)
NODE_ENTRIES: Final = 100
"""Redis trims a stream about (`~`) by whole nodes of so many entries."""

_NUMBER: Final = re.compile(rb"\d+(-\d+)?")


class Refusal(Exception):
    """An error that a command answers with, as Redis words it."""


class NotModelled(BaseException):
    """Something was asked that this model does not know: it must learn it, or nobody may ask. Nobody catches it."""


def wrong_type() -> Refusal:
    return Refusal("WRONGTYPE Operation against a key holding the wrong kind of value")


class Stream:
    """Entries by id. Ids only grow, also when the last entry is gone."""

    __slots__ = ("added", "fields", "ids", "last")

    def __init__(self) -> None:
        self.ids: list[Id] = []
        self.fields: list[list[bytes]] = []
        self.last: Id = FIRST
        self.added = 0

    def __copy__(self) -> Stream:
        other = Stream()
        other.ids, other.fields = self.ids.copy(), self.fields.copy()
        other.last, other.added = self.last, self.added
        return other

    def add(self, at: Id, fields: list[bytes]) -> None:
        if at <= self.last:
            raise Refusal("ERR The ID specified in XADD is equal or smaller than the target stream top item")
        self.ids.append(at)
        self.fields.append(fields)
        self.last = at
        self.added += 1

    def next_id(self, milliseconds: int) -> Id:
        return (milliseconds, 0) if milliseconds > self.last[0] else (self.last[0], self.last[1] + 1)

    def between(self, first: Id, last: Id) -> tuple[int, int]:
        """Where entries from `first` to `last` stand, both included."""
        return bisect_left(self.ids, first), bisect_right(self.ids, last)

    def cut(self, count: int) -> int:
        """Takes the oldest ones away."""
        del self.ids[:count]
        del self.fields[:count]
        return count

    def delete(self, at: Id) -> int:
        place = bisect_left(self.ids, at)
        if place == len(self.ids) or self.ids[place] != at:
            return 0
        del self.ids[place]
        del self.fields[place]
        return 1

    def frozen(self) -> tuple[Any, ...]:
        return (b"stream", self.ids.copy(), self.fields.copy(), self.last)


class Scores(dict[bytes, float]):
    """A sorted set: member -> score."""

    def __copy__(self) -> Scores:
        return Scores(self)

    def ranked(self) -> list[tuple[float, bytes]]:
        return sorted((score, member) for member, score in self.items())


Hash: TypeAlias = dict[bytes, bytes]
Value: TypeAlias = bytes | list[bytes] | set[bytes] | Stream | Scores | Hash
"""string, list (its head first), set, stream, sorted set, hash."""

_KINDS: Final[dict[type, bytes]] = {
    bytes: b"string",
    list: b"list",
    set: b"set",
    Stream: b"stream",
    Scores: b"zset",
    dict: b"hash",
}


def kind(value: Value) -> bytes:
    """The type's name, as TYPE answers it."""
    return _KINDS[type(value)]


@dataclass(slots=True)
class Keyspace:
    """All keys, and the clock by which they expire.

    now: microseconds; whoever owns the model moves it. deadlines: key -> milliseconds at which it is gone.
    """

    now: int = 0
    keys: dict[bytes, Value] = field(default_factory=dict)
    deadlines: dict[bytes, int] = field(default_factory=dict)

    @property
    def milliseconds(self) -> int:
        return self.now // 1000

    def get(self, key: bytes, type_: type) -> Any:
        """The value, or None. Raises Refusal when it is of another type."""
        if self.deadlines:
            self.forget_expired()
        value = self.keys.get(key)
        if value is not None and type(value) is not type_:
            raise wrong_type()
        return value

    def make(self, key: bytes, type_: type) -> Any:
        """The value, which is made when there is none."""
        value = self.get(key, type_)
        if value is None:
            value = self.keys[key] = type_()
        return value

    def forget_expired(self) -> None:
        for key in [key for key, at in self.deadlines.items() if at <= self.milliseconds]:
            self.remove(key)

    def remove(self, key: bytes) -> int:
        self.deadlines.pop(key, None)
        return 0 if self.keys.pop(key, None) is None else 1

    def drop_if_empty(self, key: bytes, value: Any) -> None:
        """An empty stream stays, all else that is empty goes."""
        if not value:
            self.remove(key)

    def copied(self) -> Keyspace:
        """Another one with the same content, independent of this one."""
        return Keyspace(self.now, {key: copy(value) for key, value in self.keys.items()}, self.deadlines.copy())

    def frozen(self) -> list[Any]:
        """All that it holds but for its clock, to be compared or encoded. Neither keys nor fields have an order."""
        return [(key, _frozen(value)) for key, value in sorted(self.keys.items(), key=_first)]


def _first(pair: tuple[bytes, Value]) -> bytes:
    return pair[0]


def _frozen(value: Any) -> Any:
    type_ = type(value)
    if type_ is dict or type_ is Scores:
        return (kind(value), sorted(value.items()))
    if type_ is Stream:
        return value.frozen()
    return (kind(value), sorted(value) if type_ is set else value)


def read_id(text: bytes, missing: int = 0) -> Id:
    """An id as commands take it; `missing` stands for a sequence that is not there."""
    if not _NUMBER.fullmatch(text):
        raise Refusal("ERR Invalid stream ID specified as stream command argument")
    first, dash, second = text.partition(b"-")
    return int(first), int(second) if dash else missing


def write_id(at: Id) -> bytes:
    return b"%d-%d" % at
