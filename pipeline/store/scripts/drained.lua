-- A node is to have no work, or may have some again. The mark outlives leaders; they give its partitions to others.
-- KEYS: drained, job    ARGV: node, stay or stop (its agent ends when it owns nothing), or '' to take the mark away
-- Returns {1}, {0} there was no mark to take away, {-5} no such job
if call('EXISTS', KEYS[2]) == 0 then return {-5} end
if ARGV[2] == '' then return {call('HDEL', KEYS[1], ARGV[1])} end
local time = now(KEYS[2])
local key = foreign({KEYS[1], 'hash'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
call('HDEL', KEYS[1], ARGV[1])
call('HSET', KEYS[1], ARGV[1], int(time) .. ' ' .. ARGV[2])
return {1}
