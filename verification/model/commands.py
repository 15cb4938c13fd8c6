"""The commands that the store and its scripts send, on a keyspace. Answers: int, bytes, None, Status, list."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from fnmatch import translate
from typing import Any, Final, TypeAlias

from verification.model.keyspace import Keyspace, NotModelled, Refusal, Scores, kind
from verification.model.streams import STREAM_COMMANDS

Args: TypeAlias = list[bytes]


class Status(bytes):
    """A status reply, which a script sees as a table."""

    __slots__ = ()


OK: Final = Status(b"OK")
_INTEGER: Final = re.compile(rb"-?(0|[1-9]\d*)")


def integer(text: bytes, refusal: str = "ERR value is not an integer or out of range") -> int:
    if not _INTEGER.fullmatch(text):
        raise Refusal(refusal)
    return int(text)


# keys of any type


def _delete(keyspace: Keyspace, args: Args) -> int:
    keyspace.forget_expired()
    return sum(keyspace.remove(key) for key in args)


def _exists(keyspace: Keyspace, args: Args) -> int:
    keyspace.forget_expired()
    return sum(key in keyspace.keys for key in args)


def _type(keyspace: Keyspace, args: Args) -> Status:
    keyspace.forget_expired()
    value = keyspace.keys.get(args[0])
    return Status(b"none" if value is None else kind(value))


def _copy(keyspace: Keyspace, args: Args) -> int:
    keyspace.forget_expired()
    source, target, *options = args
    if options not in ([], [b"REPLACE"]):
        raise NotModelled(f"COPY with {options}")
    if source == target:
        raise Refusal("ERR source and destination objects are the same")
    if source not in keyspace.keys or (target in keyspace.keys and not options):
        return 0
    keyspace.remove(target)
    keyspace.keys[target] = copy(keyspace.keys[source])
    if source in keyspace.deadlines:
        keyspace.deadlines[target] = keyspace.deadlines[source]
    return 1


def _rename(keyspace: Keyspace, args: Args) -> Status:
    keyspace.forget_expired()
    source, target = args
    if source not in keyspace.keys:
        raise Refusal("ERR no such key")
    if source != target:
        _copy(keyspace, [source, target, b"REPLACE"])
        keyspace.remove(source)
    return Status(b"OK")


def _pexpire(keyspace: Keyspace, args: Args) -> int:
    keyspace.forget_expired()
    if args[0] not in keyspace.keys:
        return 0
    keyspace.deadlines[args[0]] = keyspace.milliseconds + integer(args[1])
    return 1


def _expire(keyspace: Keyspace, args: Args) -> int:
    return _pexpire(keyspace, [args[0], b"%d" % (1000 * integer(args[1]))])


def _scan(keyspace: Keyspace, args: Args) -> list[Any]:
    keyspace.forget_expired()
    return [b"0", [key for key in keyspace.keys if _matches(args[1:], key)]]


def _matches(options: Args, name: bytes) -> bool:
    """Whether a SCAN with these options finds it. Patterns of ours have no escapes but for the brackets."""
    for option, value in zip(options[::2], options[1::2], strict=True):
        match option.upper():
            case b"MATCH":
                pattern = translate(value.replace(b"\\", b"").decode("latin-1"))
                if not re.match(pattern, name.decode("latin-1")):
                    return False
            case b"COUNT":
                pass
            case _:
                raise NotModelled(f"SCAN {option!r}")
    return True


def _flush(keyspace: Keyspace, _: Args) -> Status:
    keyspace.keys.clear()
    keyspace.deadlines.clear()
    return OK


def _time(keyspace: Keyspace, _: Args) -> list[bytes]:
    return [b"%d" % (keyspace.now // 1_000_000), b"%d" % (keyspace.now % 1_000_000)]


def _memory_usage(keyspace: Keyspace, args: Args) -> int | None:
    """Only that it grows with what is there: bytes of a real server are another matter."""
    value: Any = keyspace.keys.get(args[1])
    return None if value is None else 100 * (1 + len(getattr(value, "ids", value)))


# strings


def _get(keyspace: Keyspace, args: Args) -> Any:
    return keyspace.get(args[0], bytes)


def _set(keyspace: Keyspace, args: Args) -> Status:
    if len(args) != 2:
        raise NotModelled(f"SET with {args[2:]}")
    keyspace.remove(args[0])
    keyspace.keys[args[0]] = bytes(args[1])
    return OK


def _incr(keyspace: Keyspace, args: Args) -> int:
    number = integer(keyspace.get(args[0], bytes) or b"0") + 1
    keyspace.keys[args[0]] = b"%d" % number
    return number


# hashes


def _hset(keyspace: Keyspace, args: Args) -> int:
    if len(args) < 3 or len(args) % 2 == 0:
        raise Refusal("ERR wrong number of arguments for 'hset' command")
    found = keyspace.make(args[0], dict)
    before = len(found)
    found.update(zip(args[1::2], args[2::2], strict=True))
    return len(found) - before


def _hget(keyspace: Keyspace, args: Args) -> Any:
    return (keyspace.get(args[0], dict) or {}).get(args[1])


def _hmget(keyspace: Keyspace, args: Args) -> list[Any]:
    found = keyspace.get(args[0], dict) or {}
    return [found.get(name) for name in args[1:]]


def _hgetall(keyspace: Keyspace, args: Args) -> list[bytes]:
    return [part for pair in (keyspace.get(args[0], dict) or {}).items() for part in pair]


def _hkeys(keyspace: Keyspace, args: Args) -> list[bytes]:
    return list(keyspace.get(args[0], dict) or ())


def _hlen(keyspace: Keyspace, args: Args) -> int:
    return len(keyspace.get(args[0], dict) or ())


def _hexists(keyspace: Keyspace, args: Args) -> int:
    return int(args[1] in (keyspace.get(args[0], dict) or ()))


def _hdel(keyspace: Keyspace, args: Args) -> int:
    found = keyspace.get(args[0], dict)
    if found is None:
        return 0
    gone = sum(found.pop(name, None) is not None for name in args[1:])
    keyspace.drop_if_empty(args[0], found)
    return gone


def _hincrby(keyspace: Keyspace, args: Args) -> int:
    step = integer(args[2])
    before = integer((keyspace.get(args[0], dict) or {}).get(args[1], b"0"), "ERR hash value is not an integer")
    keyspace.make(args[0], dict)[args[1]] = b"%d" % (before + step)
    return before + step


def _hscan(keyspace: Keyspace, args: Args) -> list[Any]:
    found = keyspace.get(args[0], dict) or {}
    return [b"0", [part for pair in found.items() if _matches(args[2:], pair[0]) for part in pair]]


def _zscan(keyspace: Keyspace, args: Args) -> list[Any]:
    found = keyspace.get(args[0], Scores) or Scores()
    return [
        b"0",
        [part for pair in found.items() if _matches(args[2:], pair[0]) for part in (pair[0], _score_text(pair[1]))],
    ]


# lists and sets


def _lpush(keyspace: Keyspace, args: Args) -> int:
    found = keyspace.make(args[0], list)
    found[:0] = reversed(args[1:])
    return len(found)


def _rpop(keyspace: Keyspace, args: Args) -> Any:
    found = keyspace.get(args[0], list)
    if found is None:
        return None
    last = found.pop()
    keyspace.drop_if_empty(args[0], found)
    return last


def _ltrim(keyspace: Keyspace, args: Args) -> Status:
    found = keyspace.get(args[0], list)
    if found is not None:
        found[:] = _by_rank(found, args[1], args[2])
        keyspace.drop_if_empty(args[0], found)
    return OK


def _llen(keyspace: Keyspace, args: Args) -> int:
    return len(keyspace.get(args[0], list) or ())


def _lrange(keyspace: Keyspace, args: Args) -> list[bytes]:
    return _by_rank(keyspace.get(args[0], list) or [], args[1], args[2])


def _by_rank(found: list[Any], first: bytes, last: bytes) -> list[Any]:
    start, stop = integer(first), integer(last)
    start = max(0, start + len(found)) if start < 0 else start
    stop = stop + len(found) if stop < 0 else stop
    return found[start : stop + 1] if stop >= 0 else []


def _sadd(keyspace: Keyspace, args: Args) -> int:
    found = keyspace.make(args[0], set)
    before = len(found)
    found.update(args[1:])
    return len(found) - before


def _srem(keyspace: Keyspace, args: Args) -> int:
    found = keyspace.get(args[0], set)
    if found is None:
        return 0
    before = len(found)
    found.difference_update(args[1:])
    gone = before - len(found)
    keyspace.drop_if_empty(args[0], found)
    return gone


def _smembers(keyspace: Keyspace, args: Args) -> list[bytes]:
    return sorted(keyspace.get(args[0], set) or ())


# sorted sets


def _score(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refusal("ERR value is not a valid float") from None


def _score_text(score: float) -> bytes:
    return b"%.17g" % score


def _zadd(keyspace: Keyspace, args: Args) -> int:
    pairs = [(member, _score(score)) for score, member in zip(args[1::2], args[2::2], strict=True)]
    found = keyspace.make(args[0], Scores)
    before = len(found)
    found.update(pairs)
    return len(found) - before


def _zrem(keyspace: Keyspace, args: Args) -> int:
    found = keyspace.get(args[0], Scores)
    if found is None:
        return 0
    gone = sum(found.pop(member, None) is not None for member in args[1:])
    keyspace.drop_if_empty(args[0], found)
    return gone


def _zscore(keyspace: Keyspace, args: Args) -> Any:
    found = keyspace.get(args[0], Scores)
    return None if found is None or args[1] not in found else _score_text(found[args[1]])


def _zmscore(keyspace: Keyspace, args: Args) -> list[Any]:
    found = keyspace.get(args[0], Scores) or Scores()
    return [_score_text(found[member]) if member in found else None for member in args[1:]]


def _zcard(keyspace: Keyspace, args: Args) -> int:
    return len(keyspace.get(args[0], Scores) or ())


def _zrange(keyspace: Keyspace, args: Args) -> list[bytes]:
    ranked = (keyspace.get(args[0], Scores) or Scores()).ranked()
    return _shown(_by_rank(ranked, args[1], args[2]), args[3:])


def _zrangebyscore(keyspace: Keyspace, args: Args) -> list[bytes]:
    found = [
        pair for pair in (keyspace.get(args[0], Scores) or Scores()).ranked() if _is_within(pair[0], args[1], args[2])
    ]
    return _shown(found, args[3:])


def _is_within(score: float, low: bytes, high: bytes) -> bool:
    over = score > _score(low[1:]) if low[:1] == b"(" else score >= _score(low)
    return over and (score < _score(high[1:]) if high[:1] == b"(" else score <= _score(high))


def _shown(found: list[tuple[float, bytes]], options: Args) -> list[bytes]:
    options, with_scores = list(options), False
    while options:
        match options.pop(0).upper():
            case b"WITHSCORES":
                with_scores = True
            case b"LIMIT":
                skipped, count = integer(options.pop(0)), integer(options.pop(0))
                found = found[skipped : skipped + count] if count >= 0 else found[skipped:]
            case other:
                raise NotModelled(f"an option of a sorted set: {other!r}")
    return [part for score, member in found for part in ((member, _score_text(score)) if with_scores else (member,))]


def _zremrangebyrank(keyspace: Keyspace, args: Args) -> int:
    ranked = (keyspace.get(args[0], Scores) or Scores()).ranked()
    gone = _by_rank(ranked, args[1], args[2])
    return _zrem(keyspace, [args[0], *(member for _, member in gone)]) if gone else 0


def _zremrangebyscore(keyspace: Keyspace, args: Args) -> int:
    ranked = (keyspace.get(args[0], Scores) or Scores()).ranked()
    gone = [member for score, member in ranked if _is_within(score, args[1], args[2])]
    return _zrem(keyspace, [args[0], *gone]) if gone else 0


COMMANDS: Final[dict[bytes, Callable[[Keyspace, Args], Any]]] = {
    b"DEL": _delete, b"UNLINK": _delete, b"EXISTS": _exists, b"TYPE": _type, b"COPY": _copy,
    b"RENAME": _rename,
    b"PEXPIRE": _pexpire, b"EXPIRE": _expire,
    b"SCAN": _scan, b"FLUSHALL": _flush, b"FLUSHDB": _flush, b"TIME": _time, b"MEMORY": _memory_usage,
    b"GET": _get, b"SET": _set, b"INCR": _incr,
    b"HSET": _hset, b"HGET": _hget, b"HMGET": _hmget, b"HGETALL": _hgetall, b"HKEYS": _hkeys, b"HLEN": _hlen,
    b"HEXISTS": _hexists, b"HDEL": _hdel, b"HINCRBY": _hincrby, b"HSCAN": _hscan,
    b"LPUSH": _lpush, b"RPOP": _rpop, b"LLEN": _llen, b"LRANGE": _lrange, b"LTRIM": _ltrim,
    b"SADD": _sadd, b"SREM": _srem, b"SMEMBERS": _smembers,
    b"ZADD": _zadd, b"ZREM": _zrem, b"ZSCORE": _zscore, b"ZMSCORE": _zmscore, b"ZCARD": _zcard, b"ZSCAN": _zscan,
    b"ZRANGE": _zrange,
    b"ZRANGEBYSCORE": _zrangebyscore, b"ZREMRANGEBYRANK": _zremrangebyrank, b"ZREMRANGEBYSCORE": _zremrangebyscore,
    **STREAM_COMMANDS,
}  # fmt: skip
"""Name -> what it does to the keyspace and what it answers. Raises Refusal."""
