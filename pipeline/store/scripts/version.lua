-- Keeps a version of the job's pipeline: what is run from now on.
-- KEYS: job, versions, rollout, operation
-- ARGV: version, most versions, '1' the job is submitted, '' a run has it, '-' as before; what all workers are to run,
--   '' for what they find, '-' as before; token of the upgrade that brings it, or '' from outside of any
-- Returns {1}, {-1} that upgrade was taken for gone, {-5} no such job
-- The first write is an LTRIM, which a Redis without memory lets through.
if call('HEXISTS', KEYS[1], 'state') == 0 then return {-5} end
local key = foreign({KEYS[2], 'list', KEYS[3], 'hash', KEYS[4], 'hash'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
if ARGV[5] ~= '' and call('HGET', KEYS[4], 'token') ~= ARGV[5] then return {-1} end
local at = int(now(KEYS[1]))
call('LTRIM', KEYS[2], 0, int(tonumber(ARGV[2]) - 2))
call('HDEL', KEYS[1], 'code')
if ARGV[4] ~= '-' then call('DEL', KEYS[3]) end
if ARGV[3] ~= '-' then call('HDEL', KEYS[1], 'submitted') end
call('LPUSH', KEYS[2], at .. ' ' .. ARGV[1])
if ARGV[4] ~= '-' and ARGV[4] ~= '' then call('HSET', KEYS[3], '*', ARGV[4]) end
if ARGV[3] == '1' then call('HSET', KEYS[1], 'submitted', '1') end
return {1}
