-- Keeps a decision about the number of workers, and carries it out: agents follow the number.
-- KEYS: leader, job, decisions
-- ARGV: leader token, workers before, workers wanted, decision, most decisions,
--       '' for the pool `main`, ':name' for another one
-- Returns {1}, {0} another number is wanted by now, or it is fixed, {-1} no longer the leader
-- The first write is an HDEL, which a Redis without memory lets through.
if not leads(KEYS[1], ARGV[1]) then return {-1} end
local wanted = 'workers_wanted' .. ARGV[6]
if call('HGET', KEYS[2], wanted) ~= ARGV[2] then return {0} end
local key = foreign({KEYS[3], 'list'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local time = int(now(KEYS[2]))

call('HDEL', KEYS[2], wanted)
call('HSET', KEYS[2], wanted, ARGV[3])
if ARGV[2] ~= ARGV[3] then call('HSET', KEYS[2], 'scaled_at' .. ARGV[6], time) end
call('LPUSH', KEYS[3], ARGV[4])
call('LTRIM', KEYS[3], 0, int(tonumber(ARGV[5]) - 1))
return {1}
