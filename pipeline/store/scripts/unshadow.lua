-- Takes a shadow away, in two steps: nothing is kept for it any more and no echo is made; and, when all that it had is
-- deleted, it is forgotten.
-- KEYS: job, operation, shadow, control
-- ARGV: token of the shadow, 'stop' or 'forget', '1' by its command, '' by somebody else: only when that is gone; to stop: version of the
--   table, the plan without echoes; to forget: what became of it, for people
-- Returns {1, version of the table}, {0} it was forgotten before, or its command is at work, {-4} the table is another by now,
--   {-5} no such job
-- The first write is an HDEL or a DEL, which a Redis without memory lets through.
local job, operation = KEYS[1], KEYS[2]
local j = call('HMGET', job, 'state', 'table', 'shadow')
if not j[1] then return {-5} end
local key = foreign({operation, 'hash', KEYS[3], 'hash', KEYS[4], 'stream'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local o = call('HMGET', operation, 'token', 'until')
local found = no_number(job, {'table'}, {j[2]}) or no_number(operation, {'until'}, {o[2]})
  or uncountable(job, 'now', 'ahead') or uncountable(operation, 'begun_at', 'switched_at')
if found then return refusal(found) end
if not j[3] or string.match(j[3], '^%S*') ~= ARGV[1] then return {0} end
local is_held = o[1] == ARGV[1]
if ARGV[3] == '' and is_held and tonumber(o[2] or 0) >= now(job) then return {0} end
if ARGV[2] == 'forget' then
  call('DEL', KEYS[3])
  call('HDEL', job, 'shadow', 'tee')
  if is_held then end_operation(job, operation, ARGV[4]) end
  return {1, tonumber(j[2])}
end
if ARGV[5] == '' then
  call('HDEL', job, 'tee')
  return {1, tonumber(j[2])}
end
if j[2] ~= ARGV[4] then return {-4} end
local version = int(tonumber(j[2]) + 1)
call('HDEL', job, 'tee')
call('HSET', job, 'plan', ARGV[5], 'table', version)
call('XADD', KEYS[4], 'MAXLEN', '~', 1000, '*', 'kind', 'Table', 'table', version)
return {1, tonumber(version)}
