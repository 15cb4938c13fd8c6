-- Registers an external sender, or finds it again: an id from a counter, an epoch, an entry partition for life.
-- KEYS: senders, job, then the log of each entry partition of the source
-- ARGV: sender name (with generation and source), '1' to raise the epoch (the older instance is a zombie then)
-- Returns {1, id, epoch, partition, last number, finished count or -1, '<number> <position>' or '', made_at.generation}
--   or {-3} closed, {-5} no such job, {-6} the name is of another generation
local senders, job = KEYS[1], KEYS[2]
local j = call('HMGET', job, 'state', 'made_at', 'generation')
local state = j[1]
if not state then return {-5} end
if string.match(ARGV[1], '^[^/]*') ~= j[3] then return {-6} end
local entry = call('HGET', senders, 'n:' .. ARGV[1])
local id, partition
if entry then
  id, partition = string.match(entry, '^(%d+) (%d+)$')
else
  if state ~= 'running' then return {-3} end
  id = int(tonumber(call('HGET', senders, 'next') or 1))
  partition = int(tonumber(id) % (#KEYS - 2))
end
local log = KEYS[3 + tonumber(partition)]
local known = call('HMGET', log, id, 'e:' .. id, 'n:' .. id, 'p:' .. id)
local epoch = tonumber(known[2] or 0)
if ARGV[2] == '1' then epoch = epoch + 1 end

call('HDEL', log, 'e:' .. id)  -- a Redis without memory lets a script through whose first write shrinks
if not entry then
  call('HSET', senders, 'next', int(tonumber(id) + 1), 'n:' .. ARGV[1], id .. ' ' .. partition)
end
call('HSET', log, id, known[1] or '0', 'e:' .. id, int(epoch))
return {1, tonumber(id), epoch, tonumber(partition), tonumber(known[1] or 0), tonumber(known[3] or -1),
  known[4] or '', j[2] .. '.' .. j[3]}
