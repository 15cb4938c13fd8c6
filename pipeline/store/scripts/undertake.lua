-- Begins a lifecycle operation that its command carries out: one at a time. It holds it by a claim, which it renews.
-- KEYS: job, operation, savepoint
-- ARGV: what it is (JSON, for people), kind, phase, token of the claim, milliseconds of the claim
-- Returns {1}, {-1, what is under way, its phase, milliseconds since it began}, {-3} the job is finished, {-5} no such job,
--   {-8, name} a savepoint is being written, {-11} the job is being restored
-- The first write is an HDEL, which a Redis without memory lets through.
local job, operation = KEYS[1], KEYS[2]
local key = foreign({job, 'hash', operation, 'hash', KEYS[3], 'hash'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local j = call('HMGET', job, 'state', 'saving', 'restoring', 'operation_n')
if not j[1] then return {-5} end
local found = uncountable(job, 'operation_n', 'now', 'ahead')
if found then return refusal(found) end
local other, is_gone, strange = under_way(job, operation)
if strange then return refusal(strange) end
if other then return {-1, unpack(other)} end
if j[1] == 'finished' then return {-3} end
if j[2] then return {-8, call('HGET', KEYS[3], 'name') or ''} end
if j[3] then return {-11} end
local time = now(job)
call('HDEL', operation, 'now')
if is_gone then end_operation(job, operation, GONE) end
local id = int(tonumber(j[4] or 0) + 1)
call('HSET', job, 'operation_n', id)
call('HSET', operation, 'id', id, 'about', ARGV[1], 'kind', ARGV[2], 'phase', ARGV[3], 'token', ARGV[4],
  'until', int(time + tonumber(ARGV[5])), 'begun_at', int(time), 'since', int(time), 'done', '0', 'total', '0')
return {1}
