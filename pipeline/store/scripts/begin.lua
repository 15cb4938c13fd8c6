-- Begins a lifecycle operation of a job: one at a time. The leader carries it out.
-- KEYS: job, operation, leader, savepoint, then the metas of the partitions that serve its stage
-- ARGV: table version that it was judged by, what it is (JSON, for people), kind, stage, number wanted, '1' to switch at once,
--   the token of the leader that begins it, or ''
-- Returns {1, id}, {-2} no longer the leader, {-1, what is under way, its phase, milliseconds since it began}, {-3, state} the job is not running,
--   {-4} the table has changed meanwhile, {-5} no such job, {-6} the stage is ending, {-8, name} a savepoint is being written
-- The first write is an HDEL, which a Redis without memory lets through.
local job, operation = KEYS[1], KEYS[2]
local wanted = {operation, 'hash', KEYS[3], 'hash', KEYS[4], 'hash'}
for i = 5, #KEYS do wanted[#wanted + 1], wanted[#wanted + 2] = KEYS[i], 'hash' end
local key = foreign(wanted)
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local j = call('HMGET', job, 'state', 'table', 'saving')
if not j[1] then return {-5} end
if ARGV[7] ~= '' and not leads(KEYS[3], ARGV[7]) then return {-2} end
local found = uncountable(job, 'operation_n', 'now', 'ahead')
if found then return refusal(found) end
local other, is_gone, strange = under_way(job, operation)
if strange then return refusal(strange) end
if other then return {-1, unpack(other)} end
if j[1] ~= 'running' then return {-3, j[1]} end
if j[2] ~= ARGV[1] then return {-4} end
if j[3] then return {-8, call('HGET', KEYS[4], 'name') or ''} end
for i = 5, #KEYS do
  if call('HGET', KEYS[i], 'done') then return {-6} end
end
local id = int(tonumber(call('HGET', job, 'operation_n') or 0) + 1)
local time = now(job)
call('HDEL', operation, 'now')
if is_gone then end_operation(job, operation, GONE) end
call('HSET', job, 'operation_n', id)
call('HSET', operation, 'id', id, 'about', ARGV[2], 'kind', ARGV[3], 'stage', ARGV[4], 'to', ARGV[5], 'phase', 'waiting',
  'begun_at', int(time), 'since', int(time))
if ARGV[6] == '1' then call('HSET', operation, 'now', '1') end
return {1, id}
