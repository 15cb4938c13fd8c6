-- A job that was filled from a savepoint is whole: from here on it runs.
-- KEYS: job, control    ARGV: nonce of who restored it, state, then fields of the job as pairs
-- Returns {1}, {-1} somebody else restores it, or it is restored, or gone
local r = call('HGET', KEYS[1], 'restoring')
if not r or string.match(r, '^%S+') ~= ARGV[1] then return {-1} end
local key = foreign({KEYS[2], 'stream'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
call('HDEL', KEYS[1], 'restoring')
for i = 3, #ARGV, 4000 do call('HSET', KEYS[1], unpack(ARGV, i, math.min(i + 3999, #ARGV))) end
enter(KEYS[1], ARGV[2], '')
call('XADD', KEYS[2], 'MAXLEN', '~', 1000, '*', 'kind', 'State', 'state', ARGV[2])
return {1}
