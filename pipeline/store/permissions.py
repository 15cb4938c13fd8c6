"""Whether this Redis user may do all that a job needs: asked at the start, lest it shows half-way in a script."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final

from redis.exceptions import NoPermissionError, ResponseError

from pipeline.errors import UnsuitableServer
from pipeline.store import keys
from pipeline.store.connection import translated

RULE: Final = f"ACL SETUSER … ~{keys.PREFIX}* &* +@all -@dangerous +info +config|get +client|setname"

_IN_SCRIPTS: Final = (
    "DEL", "EXISTS", "TYPE", "TIME", "GET", "SET . 1", "INCR", "UNLINK",
    "HSET . f 1", "HINCRBY . f 1", "HGET . f", "HMGET . f", "HGETALL", "HLEN", "HKEYS", "HEXISTS . f", "HDEL . f",
    "XADD . 1-1 f 1", "XLEN", "XRANGE . - +", "XREVRANGE . + -", "XINFO STREAM .", "XTRIM . MAXLEN 0", "XDEL . 1-1",
    "DEL",
    "ZADD . 1 m", "ZSCORE . m", "ZRANGE . 0 -1", "ZRANGEBYSCORE . 0 1", "ZREMRANGEBYSCORE . 5 6",
    "ZREMRANGEBYRANK . 5 6", "PEXPIRE . 1000", "ZREM . m", "LPUSH . m", "LLEN", "RPOP", "SADD . m",
    "RENAME . .", "SREM . m", "DEL",
)  # fmt: skip
"""Every command that our scripts send, in an order in which each finds its type; `.` or nothing is the probe's key."""

_BY_CLIENTS: Final = (
    "PING", "INFO server", "TIME", "HGETALL .", "HGET . f", "HMGET . f", "HLEN .", "HSCAN . 0", "ZSCAN . 0",
    "SCAN 0 MATCH .", "XRANGE . - +", "XREAD STREAMS . 0", "XLEN .", "ZRANGE . 0 -1", "ZSCORE . m", "LLEN .",
    "SMEMBERS .", "MEMORY USAGE .", "EXISTS .", "EVALSHA 0000000000000000000000000000000000000000 0",
    "LPUSH . m", "BRPOP . 0.01", "RPOP .", "SADD . m", "SREM . m", "PUBLISH . m",
)  # fmt: skip
"""What we, and Celery, send without a script."""

_ALONE: Final = ("WATCH .", "UNWATCH", "MULTI", "DISCARD")
"""As before, but nothing is sent beside it."""

_PROBING: Final = """
redis.call('HDEL', KEYS[1], 'f')
local refused = {}
for _, words in ipairs(ARGV) do
  local command = {}
  for word in string.gmatch(words, '%S+') do command[#command + 1] = word == '.' and KEYS[1] or word end
  if #command == 1 and command[1] ~= 'TIME' then command[2] = KEYS[1] end
  local answer = redis.pcall(unpack(command))
  if type(answer) == 'table' and answer.err then refused[#refused + 1] = command[1] .. ' ' .. answer.err end
end
return refused
"""


def check_permissions(client: Any) -> None:
    """Raises UnsuitableServer that names what this user may not do, StoreError.

    Writes a key, and deletes it: one of its own, since others may ask at the same time.
    """
    probe = f"{keys.PREFIX}probe:{secrets.token_hex(4)}"
    with translated():
        missing = [command.split()[0] for command in _refused(client, probe)]
        answers = []
        try:
            answers = client.eval(_PROBING, 1, probe, *_IN_SCRIPTS)
        except ResponseError as error:
            if not _is_refusal(error):
                raise
            missing.append(_named(str(error)))
    for answer in answers:
        command, _, why = answer.decode("utf-8", "replace").partition(" ")
        if _is_permission(why):
            missing.append(command)
    if missing:
        raise UnsuitableServer(
            f"this Redis user may not run our scripts: it lacks {', '.join(dict.fromkeys(missing))}", hint=RULE
        )


def _refused(client: Any, probe: str) -> Iterator[str]:
    pipe = client.pipeline(transaction=False)
    for command in _BY_CLIENTS:
        pipe.execute_command(*_words(command, probe))
    try:
        answers = pipe.execute(raise_on_error=False)
    except ResponseError as error:  # of what is sent at each connect
        if not _is_refusal(error):
            raise
        yield "CLIENT"
        return
    for command, answer in zip(_BY_CLIENTS, answers, strict=True):
        if _is_refusal(answer):
            yield command
    for command in _ALONE:
        try:
            client.execute_command(*_words(command, probe))
        except ResponseError as error:
            if _is_refusal(error):
                yield command


def _words(command: str, probe: str) -> list[str]:
    return [probe if word == "." else word for word in command.split()]


def _is_refusal(answer: Any) -> bool:
    return isinstance(answer, ResponseError) and _names_permission(answer)


def _names_permission(error: ResponseError) -> bool:
    return isinstance(error, NoPermissionError) or _is_permission(str(error))


def _is_permission(text: str) -> bool:
    return "NOPERM" in text or "permission" in text or "can't run this command" in text or "can't access" in text


def _named(text: str) -> str:
    """The command, or the keys, that a refusal is about."""
    if "key" in text:
        return f"the keys that begin with {keys.PREFIX}"
    return "EVAL" if "eval" in text.lower() else "a command in scripts"
