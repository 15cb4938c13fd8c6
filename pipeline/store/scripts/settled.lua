-- Ends a rescale when all partitions of its stage have passed their marks. Those that are removed have no owner any more.
-- KEYS: leader, job, operation, assignment, then the meta and the queue of each partition of the stage
-- ARGV: leader token, operation id, stage, number of partitions that serve
-- Returns {1, milliseconds since the switch}, {0} not yet, {-1} no longer the leader, {-2} the operation is gone
-- The first write is an HDEL, which a Redis without memory lets through.
local leader, job, operation, assignment = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local wanted = {job, 'hash', operation, 'hash', assignment, 'hash'}
for i = 5, #KEYS, 2 do wanted[#wanted + 1], wanted[#wanted + 2] = KEYS[i], 'hash' end
local key = foreign(wanted)
if key then return redis.error_reply('WRONGTYPE ' .. key) end
if not leads(leader, ARGV[1]) then return {-1} end
local o = call('HMGET', operation, 'id', 'phase', 'switched_at')
if o[1] ~= ARGV[2] then return {-2} end
if o[2] ~= 'settling' then return {0} end
local found = uncountable(job, 'now', 'ahead') or uncountable(operation, 'begun_at', 'switched_at')
if found then return refusal(found) end
local removed = 5 + 2 * tonumber(ARGV[4])
for i = 5, #KEYS, 2 do
  local m = call('HMGET', KEYS[i], 'switch', 'done')
  if m[1] or (i >= removed and not m[2]) then return {0} end
end
for i = removed, #KEYS, 2 do
  call('HDEL', assignment, ARGV[3] .. '.' .. int((i - 5) / 2))
  call('HDEL', KEYS[i], 'token', 'owner', 'trying', 'ring')
  call('DEL', KEYS[i + 1])
end
local took = now(job) - tonumber(o[3] or 0)
end_operation(job, operation, 'done')
return {1, took}
