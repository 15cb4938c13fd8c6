"""Runs scripts on the model, in the very Lua that Redis has. One engine serves all models of a process in turn."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from pipeline.errors import EnvironmentFault
from verification.model.commands import COMMANDS, Status
from verification.model.keyspace import Keyspace, NotModelled, Refusal

Call = Callable[..., Any]

_READS: Final = frozenset(
    b"EXISTS TYPE TIME GET HGET HMGET HGETALL HKEYS HLEN HEXISTS LLEN LRANGE SMEMBERS ZSCORE ZCARD ZRANGE"
    b" ZRANGEBYSCORE ZMSCORE XLEN XRANGE XREVRANGE XINFO".split()
)

# What a script finds: no file, no clock, no chance, and no globals of its own making.
_PREPARE: Final = b"""
local call, pcall_, sha1, unpacked = ...
local found = {redis = {call = call, pcall = pcall_, sha1hex = sha1}, cmsgpack = {unpack = unpacked}}
for _, name in ipairs({'ipairs', 'pairs', 'next', 'tonumber', 'tostring', 'type', 'unpack', 'select', 'error', 'pcall',
  'assert', 'string', 'table', 'math'}) do found[name] = _G[name] end
function found.redis.error_reply(text) return {err = text} end
function found.redis.status_reply(text) return {ok = text} end
math.random, math.randomseed = nil, nil
local scope = setmetatable({}, {
  __index = function(_, name)
    if found[name] == nil then error("Script attempted to access nonexistent global variable '" .. name .. "'", 2) end
    return found[name]
  end,
  __newindex = function(_, name) error("Script attempted to create global variable '" .. name .. "'", 2) end,
})
local function flat(answer) return unpack(answer) end
local function run(script, keys, argv)
  found.KEYS, found.ARGV = keys, argv
  return setfenv(script, scope)()
end
return flat, run
"""


class Engine:
    """Lua, with every script that it has met compiled once."""

    def __init__(self) -> None:
        lua51 = _lua51()
        self._lua = lua51.LuaRuntime(
            encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False
        )
        self._table = self._lua.table_from
        self._is_table = lua51.lua_type
        self._error = lua51.LuaError
        self._keyspace = Keyspace()
        self._compiled: dict[str, Any] = {}
        self.wrote = False
        """Whether the script that ran last has sent a command that may write."""
        self._flat, self._run = self._lua.execute(_PREPARE, self._call, self._pcall, _sha1hex, self._unpacked)

    def run(self, keyspace: Keyspace, text: str, keys: Sequence[bytes], args: Sequence[bytes]) -> Any:
        """What the script answers. Raises Refusal; as in Redis, what was written before that stays."""
        function = self._compiled.get(text) or self._compile(text)
        table = self._table
        self._keyspace, self.wrote = keyspace, False
        try:
            return self._answer(self._run(function, table(keys), table(args)))
        except Refusal as refusal:
            raise Refusal(f"{_code(str(refusal))} script: {refusal}") from None
        except self._error as error:
            raise Refusal(f"ERR Error running script: {error}") from None
        finally:
            self._keyspace = Keyspace()

    def _compile(self, text: str) -> Any:
        try:
            function = self._compiled[text] = self._lua.compile(text.encode())
        except self._error as error:
            raise Refusal(f"ERR Error compiling script: {error}") from None
        return function

    def _call(self, name: bytes, *args: Any) -> Any:
        """`redis.call`."""
        command = COMMANDS.get(name)
        if command is None:
            raise NotModelled(f"a script calls {name!r}")
        if name not in _READS:
            self.wrote = True
        answer = command(self._keyspace, [part if type(part) is bytes else _text(part) for part in args])
        if type(answer) is int or type(answer) is bytes:
            return answer
        return self._lua_value(answer)

    def _pcall(self, name: bytes, *args: Any) -> Any:
        """`redis.pcall`."""
        try:
            return self._call(name, *args)
        except Refusal as refusal:
            return self._table({b"err": str(refusal).encode()})

    def _unpacked(self, data: bytes) -> Any:
        """`cmsgpack.unpack` of one value."""
        try:
            return self._lua_data(msgspec.msgpack.decode(data))
        except msgspec.MsgspecError as error:
            raise Refusal(f"Bad data format in input. {error}") from None

    def _lua_data(self, value: Any) -> Any:
        if type(value) is list:
            return self._table([self._lua_data(part) for part in value])
        return value.encode() if type(value) is str else value

    def _lua_value(self, answer: Any) -> Any:
        if answer is None:
            return False
        if type(answer) is list:
            parts = [part if type(part) is bytes else self._lua_value(part) for part in answer]
            return self._table(parts)
        if type(answer) is Status:
            return self._table({b"ok": bytes(answer)})
        return answer

    def _answer(self, value: Any) -> Any:
        """A script's answer as a client sees it: numbers lose their fraction, a list ends at the first nil."""
        kind = type(value)
        if kind is int or kind is bytes:
            return value
        if value is None or kind is bool:
            return 1 if value else None
        if kind is float:
            return int(value)
        if self._is_table(value) != "table":
            raise NotModelled(f"a script answers {value!r}")
        if value[b"err"] is not None:
            raise Refusal(value[b"err"].decode())
        if value[b"ok"] is not None:
            return Status(value[b"ok"])
        parts = self._flat(value)
        if not isinstance(parts, tuple):
            parts = () if parts is None else (parts,)
        found: list[Any] = []
        for part in parts:
            if part is None:
                break
            found.append(part if type(part) is bytes else self._answer(part))
        return found


@cache
def engine() -> Engine:
    """The one of this process. Raises EnvironmentFault when the extra is missing."""
    return Engine()


def _lua51() -> Any:
    try:
        from lupa import lua51
    except ImportError as error:
        raise EnvironmentFault(
            "the simulation runs the scripts in Lua, which is not installed", hint="pip install 'celeriac[verify]'"
        ) from error
    return lua51


def _text(value: Any) -> bytes:
    """A number as Redis writes it when a script hands it to a command."""
    if type(value) is int and abs(value) < 10**17:
        return b"%d" % value
    if type(value) in (int, float):
        return b"%.17g" % value
    raise Refusal("ERR Lua redis lib command arguments must be strings or integers")


def _sha1hex(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


def _code(text: str) -> str:
    found = re.match(r"[A-Z]+\b", text)
    return found[0] if found else "ERR"
