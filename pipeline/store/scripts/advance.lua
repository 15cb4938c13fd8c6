-- A reader is done with everything in front of a place, `entry` or `entry/record`; from and to may be the same, which
-- says that it is still there. The output is trimmed to what its readers need, waiters are woken.
-- KEYS: out, meta, waiting    ARGV: reader, from, to, inbox_records, inbox_bytes, low mark
-- Returns {1}, {-1} no such reader, {-2, place} it stands elsewhere
local at = call('HGET', KEYS[2], 'r:' .. ARGV[1])
if not at then return {-1} end
if at ~= ARGV[2] then return {-2, at} end
settle(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]))
return {1}
