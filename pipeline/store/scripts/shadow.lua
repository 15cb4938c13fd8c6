-- Announces a shadow: each sink's records go to an echo as well from here on, by another version of the plan.
-- KEYS: job, operation, shadow, control
-- ARGV: token of the operation, version of the table, the plan with echoes, id of the shadow's job, bytes that may wait
-- Returns {1, version of the table}, {-1} the operation is another's, {-3, state} the job is not running, {-4} the table is
--   another by now, {-5} no such job, {-8} there is a shadow
-- The first write is a DEL, which a Redis without memory lets through.
local job = KEYS[1]
local j = call('HMGET', job, 'state', 'table', 'shadow')
if not j[1] then return {-5} end
local key = foreign({KEYS[2], 'hash', KEYS[3], 'hash', KEYS[4], 'stream'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local found = no_number(job, {'table'}, {j[2]})
if found then return refusal(found) end
if call('HGET', KEYS[2], 'token') ~= ARGV[1] then return {-1} end
if j[3] then return {-8} end
if j[1] ~= 'running' then return {-3, j[1]} end
if j[2] ~= ARGV[2] then return {-4} end
local version = int(tonumber(j[2]) + 1)
call('DEL', KEYS[3])
call('HDEL', job, 'tee')
call('HSET', KEYS[3], 'token', ARGV[1], 'job', ARGV[4], 'limit', ARGV[5], 'bytes', '0')
call('HSET', job, 'plan', ARGV[3], 'table', version, 'shadow', ARGV[1] .. ' ' .. ARGV[4])
call('XADD', KEYS[4], 'MAXLEN', '~', 1000, '*', 'kind', 'Table', 'table', version)
return {1, tonumber(version)}
