-- A new owner has acquired a partition that was another's: who had it, why it moved and how long it stood still is kept.
-- KEYS: meta, moves, job    ARGV: token, `stage.partition`, most moves that are kept
-- Returns {1}, {0} it was noted before, {-1} fenced
-- The first write is an HDEL, which a Redis without memory lets through.
local m = call('HMGET', KEYS[1], 'token', 'owner', 'moved')
if m[1] ~= ARGV[1] then return {-1} end
local from, why, how, since = string.match(m[3] or '', '^([^|]*)|([^|]*)|([^|]*)|(%d+)$')
if not from then return {0} end
local key = foreign({KEYS[2], 'list'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local time = now(KEYS[3])

call('HDEL', KEYS[1], 'moved')
call('LPUSH', KEYS[2], table.concat({int(time), ARGV[2], from, m[2], why, how, int(math.max(0, time - tonumber(since)))}, '|'))
call('LTRIM', KEYS[2], 0, int(tonumber(ARGV[3]) - 1))
return {1}
