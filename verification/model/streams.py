"""The stream commands of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from verification.model.keyspace import (
    FIRST,
    LAST,
    NODE_ENTRIES,
    Id,
    Keyspace,
    NotModelled,
    Refusal,
    Stream,
    read_id,
    write_id,
)

Args: TypeAlias = list[bytes]


def _xadd(keyspace: Keyspace, args: Args) -> bytes:
    key, rest = args[0], args[1:]
    bound = None
    if rest[0].upper() == b"MAXLEN":
        about = rest[1] == b"~"
        bound, rest = (about, int(rest[1 + about])), rest[2 + about :]
    at, fields = rest[0], rest[1:]
    if not fields or len(fields) % 2:
        raise Refusal("ERR wrong number of arguments for 'xadd' command")
    given = None if at == b"*" else read_id(at)
    if given == FIRST:
        raise Refusal("ERR The ID specified in XADD must be greater than 0-0")
    known = keyspace.get(key, Stream)
    stream = known if known is not None else Stream()
    id_ = stream.next_id(keyspace.milliseconds) if given is None else given
    stream.add(id_, fields)
    keyspace.keys[key] = stream
    if bound is not None:
        _trim_to(stream, *bound)
    return write_id(id_)


def _trim_to(stream: Stream, about: bool, most: int) -> int:
    surplus = max(0, len(stream.ids) - most)
    return stream.cut(surplus - surplus % NODE_ENTRIES if about else surplus)


def _xtrim(keyspace: Keyspace, args: Args) -> int:
    match args[1].upper(), args[2:]:
        case b"MINID", [at]:
            first = read_id(at)
            stream: Stream | None = keyspace.get(args[0], Stream)
            return 0 if stream is None else stream.cut(stream.between(first, LAST)[0])
        case b"MAXLEN", [most]:
            stream = keyspace.get(args[0], Stream)
            return 0 if stream is None else _trim_to(stream, False, int(most))
    raise NotModelled(f"XTRIM {args[1:]}")


def _xdel(keyspace: Keyspace, args: Args) -> int:
    stream = keyspace.get(args[0], Stream)
    if stream is None:
        return 0  # the server does not even look at the ids then
    return sum(map(stream.delete, [read_id(at) for at in args[1:]]))


def _xlen(keyspace: Keyspace, args: Args) -> int:
    stream = keyspace.get(args[0], Stream)
    return 0 if stream is None else len(stream.ids)


def _xinfo(keyspace: Keyspace, args: Args) -> list[Any]:
    """The part of `XINFO STREAM` that somebody asks for."""
    if args[0].upper() != b"STREAM" or len(args) != 2:
        raise NotModelled(f"XINFO {args}")
    stream = keyspace.get(args[1], Stream)
    if stream is None:
        raise Refusal("ERR no such key")
    return [b"length", len(stream.ids), b"last-generated-id", write_id(stream.last)]


def _bound(text: bytes, missing: int, step: int) -> Id:
    """One end of a range, which `(` leaves out. `step`: the direction in which the range lies."""
    if text in (b"-", b"+"):
        return FIRST if text == b"-" else LAST
    if text[:1] != b"(":
        return read_id(text, missing)
    at = read_id(text[1:], missing)
    if at == (LAST if step > 0 else FIRST):
        raise Refusal(f"ERR invalid {'start' if step > 0 else 'end'} ID for the interval")
    if step > 0:
        return (at[0], at[1] + 1) if at[1] < LAST[1] else (at[0] + 1, 0)
    return (at[0], at[1] - 1) if at[1] else (at[0] - 1, LAST[1])


def _xrange(keyspace: Keyspace, args: Args) -> list[Any] | None:
    first, last, count = _bound(args[1], 0, 1), _bound(args[2], LAST[1], -1), _count(args[3:])
    stream = keyspace.get(args[0], Stream)
    return None if stream is not None and count == 0 else _page(stream, first, last, count)


def _xrevrange(keyspace: Keyspace, args: Args) -> list[Any] | None:
    first, last, count = _bound(args[2], 0, 1), _bound(args[1], LAST[1], -1), _count(args[3:])
    stream = keyspace.get(args[0], Stream)
    return None if stream is not None and count == 0 else _page(stream, first, last, None)[::-1][:count]


def _count(options: Args) -> int | None:
    if not options:
        return None
    if options[0].upper() != b"COUNT" or len(options) != 2:
        raise NotModelled(f"a range with {options}")
    return max(0, int(options[1]))


def _page(stream: Stream | None, first: Id, last: Id, count: int | None) -> list[Any]:
    if stream is None:
        return []
    start, stop = stream.between(first, last)
    if count is not None:
        stop = min(stop, start + count)
    return [[write_id(stream.ids[at]), stream.fields[at]] for at in range(start, stop)]


def _xread(keyspace: Keyspace, args: Args) -> list[Any] | None:
    """Never waits: whoever would, asks again."""
    options = {name.upper(): at for at, name in enumerate(args)}
    names = args[options[b"STREAMS"] + 1 :]
    count = int(args[options[b"COUNT"] + 1]) if b"COUNT" in options else None
    found = []
    for key, after in zip(names[: len(names) // 2], names[len(names) // 2 :], strict=True):
        stream = keyspace.get(key, Stream)
        if stream is None or after == b"$":
            continue
        rows = _page(stream, _bound(b"(" + after, 0, 1), LAST, count)
        if rows:
            found.append([key, rows])
    return found or None


STREAM_COMMANDS: Final[dict[bytes, Callable[[Keyspace, Args], Any]]] = {
    b"XADD": _xadd, b"XTRIM": _xtrim, b"XDEL": _xdel, b"XLEN": _xlen, b"XRANGE": _xrange, b"XREVRANGE": _xrevrange,
    b"XREAD": _xread, b"XINFO": _xinfo,
}  # fmt: skip
