-- Says what one worker is to run, or all of them.
-- KEYS: job, rollout, operation
-- ARGV: worker, or `*` for all: then no other is an exception any more; `code target`, or '' to take back what was said of
--   the worker; token of the upgrade that says so, or '' from outside of any
-- Returns {1}, {-1} that upgrade was taken for gone, {-5} no such job
-- The first write is an HDEL or a DEL, which a Redis without memory lets through.
if call('HEXISTS', KEYS[1], 'state') == 0 then return {-5} end
local key = foreign({KEYS[2], 'hash', KEYS[3], 'hash'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
if ARGV[3] ~= '' and call('HGET', KEYS[3], 'token') ~= ARGV[3] then return {-1} end
if ARGV[1] == '*' then call('DEL', KEYS[2]) else call('HDEL', KEYS[2], ARGV[1]) end
if ARGV[2] ~= '' then call('HSET', KEYS[2], ARGV[1], ARGV[2]) end
return {1}
