-- A sender says that it has exactly this many records. Idempotent.
-- KEYS: log, senders, job    ARGV: sender id, count, source
-- Returns {1, last}, or {-1} unknown sender, {-5} no such job, {-6, last} when another number was appended
local log, senders = KEYS[1], KEYS[2]
if call('EXISTS', KEYS[3]) == 0 then return {-5} end
local known = call('HMGET', log, ARGV[1], 'n:' .. ARGV[1])
if not known[1] then return {-1} end
if tonumber(known[1]) ~= tonumber(ARGV[2]) then return {-6, tonumber(known[1])} end
local found = uncountable(senders, 'f:' .. ARGV[3])
if found then return refusal(found) end
if not known[2] then
  call('HDEL', log, 'n:' .. ARGV[1])  -- a Redis without memory lets a script through whose first write shrinks
  call('HSET', log, 'n:' .. ARGV[1], ARGV[2])
  call('HINCRBY', senders, 'f:' .. ARGV[3], 1)
end
return {1, tonumber(known[1])}
