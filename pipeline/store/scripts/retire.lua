-- Takes a leader out of the registry, with its tick queue, if it was not heard of for long enough.
-- KEYS: leaders, queue    ARGV: leader, silence in ms (0: whenever it was heard of)
-- Returns {1}, or {0} it was heard of since, or is out already
local at = call('ZSCORE', KEYS[1], ARGV[1])
local time = call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[2] ~= '0' and (not at or tonumber(at) > ms - tonumber(ARGV[2])) then return {0} end
call('ZREM', KEYS[1], ARGV[1])
call('DEL', KEYS[2])
return {1}
