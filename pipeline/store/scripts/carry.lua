-- The command that carries an operation out says that it is at work, and how far; or that it has ended.
-- KEYS: job, operation
-- ARGV: token of its claim, milliseconds of the claim, phase, workers that have changed, all of them; outcome for people, or '' while it
--   goes on
-- Returns {1}, or {-1} it was taken for gone, and has ended, or another one has begun
-- The first write is an HDEL or a DEL, which a Redis without memory lets through.
local job, operation = KEYS[1], KEYS[2]
local key = foreign({job, 'hash', operation, 'hash'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local o = call('HMGET', operation, 'token', 'phase', 'since')
if not o[1] or o[1] ~= ARGV[1] then return {-1} end
local found = uncountable(job, 'now', 'ahead') or uncountable(operation, 'begun_at', 'switched_at')
if found then return refusal(found) end
if ARGV[6] ~= '' then
  end_operation(job, operation, ARGV[6])
  return {1}
end
local time = now(job)
call('HDEL', operation, 'until')
call('HSET', operation, 'until', int(time + tonumber(ARGV[2])), 'phase', ARGV[3], 'done', ARGV[4], 'total', ARGV[5],
  'since', o[2] == ARGV[3] and o[3] or int(time))
return {1}
