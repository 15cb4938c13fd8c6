-- What may be asked of an operation before its first step that cannot be taken back: to begin with it at once, or to end.
-- KEYS: job, operation, leader
-- ARGV: id, or '' for whichever there is; 'now' or 'end'; the outcome for people; leader token, or '' (from outside)
-- Returns {1, what it is}, {0, what it is, its phase} too late, {-1} no longer the leader, {-2} there is none
-- The first write is an HDEL, which a Redis without memory lets through.
local job, operation = KEYS[1], KEYS[2]
local key = foreign({job, 'hash', operation, 'hash'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
if ARGV[4] ~= '' and not leads(KEYS[3], ARGV[4]) then return {-1} end
local o = call('HMGET', operation, 'id', 'about', 'phase')
if not o[1] or (ARGV[1] ~= '' and o[1] ~= ARGV[1]) then return {-2} end
if o[3] ~= 'waiting' then return {0, o[2] or '', o[3] or ''} end
local found = uncountable(job, 'now', 'ahead') or uncountable(operation, 'begun_at', 'switched_at')
if found then return refusal(found) end
if ARGV[2] == 'now' then
  call('HDEL', operation, 'now')
  call('HSET', operation, 'now', '1')
else
  end_operation(job, operation, ARGV[3])
end
return {1, o[2] or ''}
