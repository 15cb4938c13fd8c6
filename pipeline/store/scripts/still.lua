-- Pauses a stage, or lets it go on. Workers are told to look; a slice that has begun comes to its end.
-- KEYS: job, control    ARGV: stage, '1' to pause it, '' to let it go on
-- Returns {1} done, {0} it was so before, {-3, state} the job does not work, {-5} no such job
-- The first write is an HDEL, which a Redis without memory lets through.
local j = call('HMGET', KEYS[1], 'state', 'still:' .. ARGV[1])
if not j[1] then return {-5} end
if j[1] ~= 'running' and j[1] ~= 'draining' then return {-3, j[1]} end
if (j[2] and '1' or '') == ARGV[2] then return {0} end
local key = foreign({KEYS[2], 'stream'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local time = int(now(KEYS[1]))

call('HDEL', KEYS[1], 'still:' .. ARGV[1])
if ARGV[2] == '1' then call('HSET', KEYS[1], 'still:' .. ARGV[1], time) end
call('XADD', KEYS[2], 'MAXLEN', '~', 1000, '*', 'kind', 'Pause')
return {1}
