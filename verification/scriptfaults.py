"""Errors inside scripts: each call before the first write fails once, and each key holds a foreign type once.

Redis undoes nothing when a script fails. So a script that fails must have written nothing, and nothing that a key holds
may make it fail behind its first write. Each script that a scenario runs is tried on a copy of all that Redis holds, at
the moment at which it is run, in the server's second database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pipeline.errors import StoreError
from pipeline.store.connection import connect, translated
from pipeline.store.scripts import source
from verification.clock import Clock, TimedScripts, argument_of_time, timed

_LOADER: Final = "local call = redis.call\n"

_WRITES: Final = (
    "COPY", "DEL", "EXPIRE", "HDEL", "HINCRBY", "HSET", "INCR", "LPUSH", "LTRIM", "PEXPIRE", "RENAME", "RPOP", "SADD",
    "SET", "SREM", "UNLINK", "XADD", "XDEL", "XSETID", "XTRIM", "ZADD", "ZREM", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE",
)  # fmt: skip

# Ids of the server's own are counted, so that two runs of a script write the same. `fail_`: the call that fails, or -1
# for the first one that may write.
_FIRST: Final = """
local fail_, seconds_of_ids_ = string.match(table.remove(ARGV), '(%-?%d+) (%d+)')
fail_ = tonumber(fail_)
"""
_FAULTY: Final = """
local calls_, wrote_, ids_, writes_ = 0, false, 0, {}
for name in string.gmatch('WRITES', '%S+') do writes_[name] = true end
local call = function(command, ...)
  calls_ = calls_ + 1
  if calls_ == fail_ and not wrote_ then error('INJECTED') end
  if writes_[command] then
    if fail_ == -1 then error('CALL ' .. calls_ .. ' WOULD WRITE') end
    wrote_ = true
  end
  local args = {...}
  for n = 2, command == 'XADD' and 5 or 0 do
    if args[n] == '*' then
      ids_ = ids_ + 1
      args[n] = seconds_of_ids_ .. '000-' .. ids_
    end
  end
  return redis.call(command, unpack(args))
end
""".replace("WRITES", " ".join(_WRITES), 1)

_COPY: Final = "for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', key, key, 'DB', '1') end"

# A hash has no order, so it is read rather than dumped.
_CONTENT: Final = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local content
  if redis.call('TYPE', key).ok == 'hash' then
    local pairs_, flat = {}, redis.call('HGETALL', key)
    for i = 1, #flat, 2 do pairs_[#pairs_ + 1] = flat[i] .. '\\0' .. flat[i + 1] end
    table.sort(pairs_)
    content = table.concat(pairs_, '\\1')
  else
    content = redis.call('DUMP', key)
  end
  found[#found + 1] = key
  found[#found + 1] = redis.sha1hex(content)
end
return found
"""

_MET: Final = re.compile(r"celeriac:\{[^}]*\}:(?:state:|timers:|held|dead|files)")
"""Keys whose type an owner looks at once only, in its first commit to them: tests of `commit` try what happens then."""


_FOREIGN: Final = b"\xff foreign"
_CHANGES: Final = "rdb_changes_since_last_save"
_SOON: Final = re.compile(r"CALL (\d+) WOULD WRITE")
_AT_ONCE: Final = 16


@dataclass(slots=True)
class ScriptTally:
    """errors, foreign: how many calls were made to fail, how many keys were of a foreign type. `failures`: in words."""

    scripts: int = 0
    errors: int = 0
    foreign: int = 0
    failures: list[str] = field(default_factory=list)


class TriedScripts(TimedScripts):
    """Runs each script; before that, tries on a copy what its failures leave behind."""

    def __init__(self, client: Any, clock: Clock, trial: Trial, is_wanted: Callable[[], bool] = lambda: True) -> None:
        super().__init__(client, clock)
        self._clock = clock
        self._trial = trial
        self._is_wanted = is_wanted

    def anew(self) -> Self:
        return type(self)(self.client, self._clock, self._trial, self._is_wanted)

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        server = self.server or self.meet()
        if self._is_wanted():
            self._trial.of(Call(name, server, tuple(keys), (*args, argument_of_time(self._clock.now_ms))))
        return super().run(name, keys, args)


@dataclass(frozen=True, slots=True)
class Call:
    """One script, for the run of the server with that id. The time is its last argument."""

    name: str
    server: str
    keys: tuple[str, ...]
    args: tuple[Any, ...]


class Trial:
    """Tries scripts on a copy of database 0, which `url` names, in database 1 of the same server."""

    def __init__(self, url: str, tally: ScriptTally) -> None:
        self._real = connect(url)
        self._copy = connect(url.replace("?db=0", "?db=1"))
        self._tally = tally
        self._seconds = 0
        """Of the ids that the server makes: later than all that it has made."""
        self._known: dict[tuple[str, str], str] = {}

    def close(self) -> None:
        self._real.close()
        self._copy.close()

    def of(self, call: Call) -> None:
        """Tries one call. Raises StoreError."""
        self._tally.scripts += 1
        with translated():
            self._begin()
            self._fail_each(call)
            self._eval(call)
            clean = self._digests()
            self._copy_all()
            for key in call.keys:
                if call.name != "commit" or not _MET.match(key):
                    self._tally.foreign += 1
                    self._try_foreign(call, key, clean)

    def _begin(self) -> None:
        self._seconds = int(self._real.time()[0]) + 1
        self._copy_all()

    def _fail_each(self, call: Call) -> None:
        """Each of its calls in front of its first write fails once."""
        found = _SOON.search(str(self._eval(call, -1)))
        number, at_once = 1, int(found[1]) if found else _AT_ONCE
        while True:
            errors = self._eval_all(call, range(number, number + at_once))
            failed = sum("INJECTED" in str(error) for error in errors[1:-1])
            self._tally.errors += failed
            if errors[0] != errors[-1]:
                self._find_writes(call, range(number, number + failed))
            if found or failed < at_once:
                return
            number += at_once

    def _eval_all(self, call: Call, numbers: range) -> list[Any]:
        """What came of it when one of these calls fails; first and last how much had been changed before and after."""
        with self._copy.pipeline(transaction=False) as pipe:
            pipe.info("persistence")
            for number in numbers:
                pipe.evalsha(*self._command(call, number))
            pipe.info("persistence")
            before, *answers, after = pipe.execute(raise_on_error=False)
        return [before[_CHANGES], *answers, after[_CHANGES]]

    def _find_writes(self, call: Call, numbers: range) -> None:
        self._copy_all()
        before = self._digests()
        for number in numbers:
            self._eval(call, number)
            if self._digests() != before:
                self._tally.failures.append(f"{call.name}.lua has written something when its call {number} fails")
                self._copy_all()

    def _try_foreign(self, call: Call, key: str, clean: dict[bytes, bytes]) -> None:
        with self._copy.pipeline(transaction=False) as pipe:
            pipe.delete(key)
            pipe.set(key, _FOREIGN)
            pipe.info("persistence")
            pipe.evalsha(*self._command(call, 0))
            pipe.info("persistence")
            pipe.delete(key)
            answers = pipe.execute(raise_on_error=False)
        if answers[2][_CHANGES] == answers[4][_CHANGES]:  # refused, or not the case in which it writes
            self._real.copy(key, key, destination_db=1)
            return
        self._copy_all()
        self._copy.delete(key)
        self._copy.set(key, _FOREIGN)
        before = self._digests()
        self._eval(call)
        after, raw = self._digests(), key.encode()
        if after != before and {**after, raw: b""} != {**clean, raw: b""}:
            self._tally.failures.append(f"{call.name}.lua has done half of its work when {key} holds something foreign")
        self._copy_all()

    def _eval(self, call: Call, fail: int = 0) -> StoreError | None:
        try:
            with translated():
                self._copy.evalsha(*self._command(call, fail))
        except StoreError as error:
            return error
        return None

    def _command(self, call: Call, fail: int) -> tuple[Any, ...]:
        sha = self._known.get((call.name, call.server)) or self._load(call)
        return sha, len(call.keys), *call.keys, *call.args, f"{fail} {self._seconds}"

    def _load(self, call: Call) -> str:
        text = _FIRST + timed(source(call.name, call.server)).replace(_LOADER, _FAULTY, 1)
        sha = self._known[call.name, call.server] = self._copy.script_load(text)
        return str(sha)

    def _copy_all(self) -> None:
        self._copy.flushdb()
        self._real.eval(_COPY, 0)

    def _digests(self) -> dict[bytes, bytes]:
        flat = self._copy.eval(_CONTENT, 0)
        return dict(zip(flat[::2], flat[1::2], strict=True))
