-- Begins the removal of a job, or takes over one that was interrupted: from here on every late writer is refused.
-- KEYS: job, leader, removing, queue of the job's own leader, leaders
-- ARGV: name of that leader, '1' to do nothing but take over, then states in which the job stays
-- Returns {number of this removal, keys deleted}, {0} there is none to take over, {-1, state} the job stays
local state = call('HGET', KEYS[1], 'state')
if ARGV[2] == '1' and call('EXISTS', KEYS[3]) == 0 then return {0} end
for i = 3, #ARGV do
  if state == ARGV[i] then return {-1, state} end
end
local key = foreign({KEYS[3], 'string', KEYS[5], 'zset'})
if not key and not string.match(call('GET', KEYS[3]) or '0', '^%d+$') then key = KEYS[3] end
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local gone = call('DEL', KEYS[1], KEYS[2], KEYS[4])
call('ZREM', KEYS[5], ARGV[1])
return {call('INCR', KEYS[3]), gone}
