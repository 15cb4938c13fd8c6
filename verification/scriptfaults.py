"""Errors inside scripts: each call before the first write fails once, and each key holds a foreign type once.

Redis undoes nothing when a script fails. So a script that fails must have written nothing, and nothing that a key holds
may make it fail behind its first write. Each script that a scenario runs is tried on a copy of all that Redis holds, at
the moment at which it is run, in the server's second database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.errors import StoreError
from pipeline.store.connection import connect, translated
from pipeline.store.scripts import Scripts, source
from verification.world import JOB

_LOADER: Final = "local call = redis.call\n"

_WRITES: Final = (
    "COPY", "DEL", "EXPIRE", "HDEL", "HINCRBY", "HSET", "INCR", "LPUSH", "PEXPIRE", "RPOP", "SADD", "SET", "SREM",
    "UNLINK", "XADD", "XDEL", "XTRIM", "ZADD", "ZREM", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE",
)  # fmt: skip

# The clock stands still and ids of the server's own are counted, so that two runs of a script write the same.
_FAULTY: Final = """
local calls_, wrote_, ids_ = 0, false, 0
local writes_ = {%(writes)s}
local call = function(command, ...)
  calls_ = calls_ + 1
  if calls_ == %(fail)d and not wrote_ then error('INJECTED') end
  if writes_[command] then wrote_ = true end
  if command == 'TIME' then return {'%(seconds)d', '0'} end
  local args = {...}
  for n = 2, command == 'XADD' and 5 or 0 do
    if args[n] == '*' then
      ids_ = ids_ + 1
      args[n] = '%(seconds)d000-' .. ids_
    end
  end
  return redis.call(command, unpack(args))
end
"""

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

_MET: Final = tuple(f"celeriac:{{{JOB}}}:{kind}" for kind in ("state:", "timers:", "held", "dead", "files"))
"""Keys whose type an owner looks at once only, in its first commit to them: tests of `commit` try what happens then."""


@dataclass(slots=True)
class ScriptTally:
    """errors, foreign: how many calls were made to fail, how many keys were of a foreign type. `failures`: in words."""

    scripts: int = 0
    errors: int = 0
    foreign: int = 0
    failures: list[str] = field(default_factory=list)


class TriedScripts(Scripts):
    """Runs each script; before that, tries on a copy what its failures leave behind."""

    def __init__(self, client: Any, trial: Trial) -> None:
        super().__init__(client)
        self._trial = trial

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        self._trial.of(name, keys, args, self.server or self.meet())
        return super().run(name, keys, args)


class Trial:
    """Tries scripts on a copy of database 0, which `url` names, in database 1 of the same server."""

    def __init__(self, url: str, tally: ScriptTally) -> None:
        self._real = connect(url)
        self._copy = connect(url.replace("?db=0", "?db=1"))
        self._tally = tally
        self._server = ""

    def close(self) -> None:
        self._real.close()
        self._copy.close()

    def of(self, name: str, keys: Sequence[str], args: Sequence[Any], server: str) -> None:
        """Tries one script on the run of the server with that id. Raises StoreError."""
        self._server = server
        self._tally.scripts += 1
        with translated():
            seconds = int(self._real.time()[0]) + 1
            before = self._copy_all()
            number = 1
            while self._is_injected(name, keys, args, seconds, number):
                self._tally.errors += 1
                if self._digests() != before:
                    self._tally.failures.append(f"{name}.lua has written something when its call {number} fails")
                    self._copy_all()
                number += 1
            clean = self._digests()
            self._copy_all()
            for key in keys:
                if name != "commit" or not key.startswith(_MET):
                    self._tally.foreign += 1
                    self._try_foreign(name, keys, args, seconds, key, clean)

    def _try_foreign(
        self, name: str, keys: Sequence[str], args: Sequence[Any], seconds: int, key: str, clean: dict[bytes, bytes]
    ) -> None:
        self._copy.delete(key)
        self._copy.set(key, b"\xff foreign")
        before = self._digests()
        self._eval(name, keys, args, seconds, 0)
        after, raw = self._digests(), key.encode()
        if after == before:  # refused, or not the case in which it writes
            self._copy.delete(key)
            self._real.copy(key, key, destination_db=1)
            return
        if {k: v for k, v in after.items() if k != raw} != {k: v for k, v in clean.items() if k != raw}:
            self._tally.failures.append(f"{name}.lua has done half of its work when {key} holds something foreign")
        self._copy_all()

    def _is_injected(self, name: str, keys: Sequence[str], args: Sequence[Any], seconds: int, number: int) -> bool:
        error = self._eval(name, keys, args, seconds, number)
        return error is not None and "INJECTED" in str(error)

    def _eval(self, name: str, keys: Sequence[str], args: Sequence[Any], seconds: int, fail: int) -> StoreError | None:
        writes = ", ".join(f"{command} = true" for command in _WRITES)
        faulty = _FAULTY % {"writes": writes, "fail": fail, "seconds": seconds}
        text = source(name, self._server).replace(_LOADER, faulty, 1)
        try:
            with translated():
                self._copy.eval(text, len(keys), *keys, *args)
        except StoreError as error:
            return error
        return None

    def _copy_all(self) -> dict[bytes, bytes]:
        self._copy.flushdb()
        self._real.eval(_COPY, 0)
        return self._digests()

    def _digests(self) -> dict[bytes, bytes]:
        flat = self._copy.eval(_CONTENT, 0)
        return dict(zip(flat[::2], flat[1::2], strict=True))
