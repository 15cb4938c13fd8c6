"""The guards of the protocol: what each forbids, and how it is taken out of its script, or module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Guard:
    """`line` of a script, or of the module of that path, becomes `instead`; then one test of `tests` must fail."""

    name: str
    script: str
    line: str
    instead: str
    tests: str = "tests/store"

    @property
    def path(self) -> str:
        return self.script if self.script.endswith(".py") else f"pipeline/store/scripts/{self.script}.lua"


_RESTARTED: Final = "tests/runtime/test_restarted_redis.py"
_CUTS: Final = "tests/store/test_cuts.py"
_CLAIMS: Final = "tests/store/test_claims.py"
_MOVED: Final = "tests/store/test_rescales.py"
_RESTORES: Final = "tests/runtime/test_savepoints.py -k interrupted_restore"
_MOVES: Final = "tests/store/test_moving.py"
_SUSPENDS: Final = "tests/store/test_cuts.py -k in_flight"
_SHADOWS: Final = "tests/runtime/test_shadowing.py"
_PROMOTES: Final = "tests/runtime/test_shadowing.py -k before_both"
_SWAPS: Final = "tests/runtime/test_recomputing.py"
_WISHES: Final = "tests/runtime/test_verified_operations.py -k wanted_of_a_shadow"
_SOURCES: Final = "tests/store/test_swaps.py"
_BURSTS: Final = "tests/runtime/test_verified_operations.py -k up_to_the_cut"
_PLANS: Final = "pipeline/spark/streaming/slices.py"
_SCRIPTS: Final = "tests/runtime/test_verification.py -k scripts_that_fail"

_ADDED: Final = "tests/fuzz/test_fuzz_jobs.py -k another_program_put"
_COUNTED: Final = "tests/fuzz/test_fuzz_jobs.py -k counts_records_that_there_are_not"

GUARDS: Final = (
    Guard("token", "commit", "if m[1] ~= ARGV[1] then return {-1} end", ""),
    Guard("position", "commit", "if m[2] ~= ARGV[2] or m[3] ~= ARGV[3] then return {-2} end", ""),
    Guard("record of the position", "commit", "m[2] ~= ARGV[2] or m[3] ~= ARGV[3]", "m[2] ~= ARGV[2]"),
    Guard("table version", "commit", "if j[2] ~= ARGV[6] then return {-3} end", ""),
    Guard("run of the server", "commit", "if j[3] ~= server then return {-6} end", "", _RESTARTED),
    Guard("token of who acquires", "acquire", "if call('HGET', KEYS[1], 'token') ~= ARGV[1] then return {-1} end", ""),
    Guard("token of who gives away", "collected", "if m[1] ~= ARGV[1] then return {-1} end", "", _MOVES),
    Guard("sequence, what was taken", "append", "if last >= first + count - 1 then", "if false then"),
    Guard("sequence, what was taken in part", "append", "if last >= first then return {3, last} end", ""),
    Guard("sequence, gaps", "append", "if first ~= last + 1 then return {-6, last} end", ""),
    Guard("sender epoch", "append", "if tonumber(ARGV[2]) < tonumber(known[2]) then return {-2, last} end", ""),
    Guard("gate", "append", "if j[2] == 'closed' or ", "if "),
    Guard("close at the end of the input", "append", " or call('HGET', meta, 'closed') then", " then"),
    Guard("generation", "register", "string.match(ARGV[1], '^[^/]*') ~= j[3]", "false", _RESTARTED),
    Guard("trim bound", "commit", "call('XTRIM', inbox, 'MINID', ARGV[4])", "call('XTRIM', inbox, 'MINID', ARGV[9])"),
    Guard("ring flag, while entries are held", "commit", " and ARGV[4] == int(head + 1) .. '-' .. int(sub)\n", "\n"),
    Guard("bound of an inbox", "commit", " >= limit_records or out.bytes >= limit_bytes", " < 0"),
    Guard("lease", "lease", "if not mine and not is_old and h[2] and time < tonumber(h[2]) then", "if false then"),
    Guard("leader's token, assign", "assign", "if not leads(KEYS[1], ARGV[1]) then return {-1} end", ""),
    Guard("next term", "assign", "if tonumber(m[1] or 0) + 1 ~= tonumber(ARGV[5]) then return {0} end", ""),
    Guard("leader's token, close", "close", "if not leads(KEYS[1], ARGV[1]) then return {-1} end", ""),
    Guard("an entry of another program", "commit", "if type(answer) == 'table' then", "if false then", _ADDED),
    Guard("the end of the inbox", "commit", " > tonumber(m[10] or 0) + 1 then", " < 0 then", _COUNTED),
    Guard("old values since a cut", "commit", "if #pairs_ > 0 then kept", "if false then kept", _CUTS),
    Guard("old values, the first one only", "commit", "if not old then fresh", "if true then fresh", _CUTS),
    Guard("entries in front of a mark", "commit", "if #passed > 0 then", "if false then", _CUTS),
    Guard("bound of what is kept", "commit", "'bytes', bytes) > limit", "'bytes', bytes) < 0", _CUTS),
    Guard("exporter's token", "exporting", "if s[1] ~= ARGV[1] then return {-1} end", "", _CUTS),
    Guard("time of ids since a cut", "append", "tonumber(call('HGET', job, 'cut_at') or 0) + 1)", "0)", _CUTS),
    Guard("gate of keys", "commit", "if ARGV[2] == switch and tonumber(m[17]", "if false and tonumber(m[17]", _MOVED),
    Guard("arrival at a mark", "commit", "  arrive(gives)\n", "", _MOVED),
    Guard("end of one that comes back", "rescale", "if ended[k] ~= '9007199254740991' then", "if false then", _MOVED),
    Guard("no cut among an operation", "cut", "if other and not is_shadow then", "if false then", _MOVED),
    Guard("no upgrade beside another", "undertake", "if other then return {-1,", "if false then return {-1,", _CLAIMS),
    Guard("no rescale beside one", "begin", "if other then return {-1,", "if false then return {-1,", _CLAIMS),
    Guard("claim of an upgrade", "carry", "if not o[1] or o[1] ~= ARGV[1] then return {-1} end", "", _CLAIMS),
    Guard("claim, what workers run", "rollout", "if ARGV[3] ~= '' and call", "if false and call", _CLAIMS),
    Guard("claim, a new version", "version", "if ARGV[5] ~= '' and call", "if false and call", _CLAIMS),
    Guard("a restore that is not done", "transition", "== 'running' and j[3] then", "== '' then", _RESTORES),
    Guard("nothing in flight", "cut", "if suspends and m[3] ~= ", "if false and m[3] ~= ", _SUSPENDS),
    Guard("input of a shadow", "append", "if shadow then tee(", "if false then tee(", _SHADOWS),
    Guard("room of a shadow", "prelude", "if to[3] + size <= to[4] then", "if true then", _SHADOWS),
    Guard("one place of a job and its shadow", "promote", "if m[1] ~= o[1] or m[2] ~= o[2] or", "if", _PROMOTES),
    Guard("input that a shadow has not got", "promote", " or call('XLEN', waiting) > 0 then", " then", _PROMOTES),
    Guard("nothing in flight at a promotion", "promote", "  if one[3] ~= ", "  if false and one[3] ~= ", _PROMOTES),
    Guard("table of a promoted version", "promote", "'table', version, 'code'", "'table', j[2], 'code'", _SHADOWS),
    Guard("command of a shadow", "unshadow", "if ARGV[3] == '' and is_held", "if false and is_held", _SHADOWS),
    Guard("nothing beside one that is left", "prelude", " and not call('HGET', job, 'shadow') then", " then", _SHADOWS),
    Guard("no replay beside a shadow", "replay", "if j[4] then return {-9} end", "", _SHADOWS),
    Guard("claim of a backfill", "swap", "'token') ~= ARGV[1] then return {-1} end", "'token') == '' then end", _SWAPS),
    Guard("what has come since, at a swap", "swap", " or last ~= ARGV[5 + i] or", " or", _SWAPS),
    Guard("no swap while old values are kept", "swap", "if j[4] then return {-8} end", "", _SWAPS),
    Guard("owner of what is swapped", "swap", "if (m[1] or '') ~= token then return {0} end", ""),
    Guard("what an owner remembers", "swap", "for _, each in ipairs(owners) do", "for _ in ipairs({}) do", _SWAPS),
    Guard("input that a command holds back", "goon", "if ARGV[2] ~= 'own' and is_held", "if false and is_held"),
    Guard("input that others hold back", "holdback", "if fresh[i] and not is_left", "if not is_left", _SWAPS),
    Guard("what is wanted of a shadow", "report", "KEYS[1], 'report')", "KEYS[1], 'report', 'want')", _WISHES),
    Guard("what one that is gone has held back", "holdback", "lines[#lines + 1] = line\n", "\n", _SOURCES),
    Guard("cut of a burst", _PLANS, "if cut is None else min(", "if True else min(", _BURSTS),
    Guard("a foreign type, before the first write", "create", "local key = foreign(wanted)", "local key", _SCRIPTS),
)  # fmt: skip
