-- A source says that all its splits are finished; the leader then ends its input.
-- KEYS: job, senders    ARGV: source, number of splits
-- Returns {1}, or {-5} no such job, {-6, finished} when another number of its senders has finished
if call('EXISTS', KEYS[1]) == 0 then return {-5} end
local finished = tonumber(call('HGET', KEYS[2], 'f:' .. ARGV[1]) or 0)
if finished ~= tonumber(ARGV[2]) then return {-6, finished} end
call('HDEL', KEYS[1], 'complete:' .. ARGV[1])
call('HSET', KEYS[1], 'complete:' .. ARGV[1], ARGV[2])
return {1}
