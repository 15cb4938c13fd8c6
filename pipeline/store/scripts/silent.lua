-- The visitors not heard of for so long, the most silent first.
-- KEYS: leader, visitors    ARGV: leader token, milliseconds, how many at most
-- Returns {1, visitors}, or {-1} no longer the leader
if not leads(KEYS[1], ARGV[1]) then return {-1} end
local time = call('TIME')
local before = time[1] * 1000 + math.floor(time[2] / 1000) - tonumber(ARGV[2])
return {1, call('ZRANGEBYSCORE', KEYS[2], '-inf', int(before), 'LIMIT', 0, ARGV[3])}
