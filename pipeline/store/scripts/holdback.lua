-- Holds back new records of sources for a backfill, all at once, and notes which: those that were not held back before, and
-- what a command that is gone has left, also of others.
-- KEYS: job, operation, then the metas of the entry partitions of these sources
-- ARGV: token of the operation, number of sources, the sources, then for each meta the number of its source
-- Returns {1}, {-1} the operation is another's, {-3, state} the job takes no input any more, {-5} no such job
-- The first write is an HDEL, which a Redis without memory lets through.
local job, operation, count = KEYS[1], KEYS[2], tonumber(ARGV[2])
local wanted = {operation, 'hash'}
for i = 3, #KEYS do wanted[#wanted + 1], wanted[#wanted + 2] = KEYS[i], 'hash' end
local key = foreign(wanted)
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local j = call('HMGET', job, 'state', 'held_back')
if not j[1] then return {-5} end
local found = uncountable(job, 'now', 'ahead')
if found then return refusal(found) end
if call('HGET', operation, 'token') ~= ARGV[1] then return {-1} end
if j[1] ~= 'running' then return {-3, j[1]} end
local lines, is_left = {ARGV[1]}, {}
for line in string.gmatch(string.match(j[2] or '', '^[^\n]*(.*)$'), '[^\n]+') do
  is_left[line] = true
  lines[#lines + 1] = line
end
local time = int(now(job))
local fresh = {}
for i = 1, count do
  local source = ARGV[2 + i]
  fresh[i] = not call('HGET', job, 'paused:' .. source)
  if fresh[i] and not is_left[source] then lines[#lines + 1] = source end
end

call('HDEL', job, 'held_back')
call('HSET', job, 'held_back', table.concat(lines, '\n'))
for i = 1, count do
  if fresh[i] then call('HSET', job, 'paused:' .. ARGV[2 + i], time) end
end
for i = 3, #KEYS do call('HSET', KEYS[i], 'paused', '1') end
return {1}
