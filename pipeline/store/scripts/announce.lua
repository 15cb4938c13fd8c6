-- A leader process says that it is here.
-- KEYS: leaders    ARGV: leader, silence in ms
-- Returns the leaders that were not heard of for longer than that
local time = call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
call('ZREM', KEYS[1], ARGV[1])
call('ZADD', KEYS[1], int(ms), ARGV[1])
return call('ZRANGEBYSCORE', KEYS[1], '-inf', int(ms - tonumber(ARGV[2])))
