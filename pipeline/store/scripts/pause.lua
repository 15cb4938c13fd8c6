-- Holds back new records of one source, or lets them in again. What senders had acknowledged is processed all the same.
-- One that a backfill, or a holder, holds back counts as not paused: it is the asker's from here on, and theirs no more.
-- KEYS: job, then the meta of each entry partition
-- ARGV: source, '1' to pause it, '' to let it go on, the holder that asks, or '': it holds back what is not paused, and
--   lets only that go on
-- One that is suspended takes none either, but may be made ready to: who has it run again does that first.
-- Returns {1} done, {0} it was so before, {-3, state} the job takes no input at all, {-5} no such job
local j = call('HMGET', KEYS[1], 'state', 'paused:' .. ARGV[1], 'held_back')
if not j[1] then return {-5} end
if j[1] ~= 'running' and not (j[1] == 'suspended' and ARGV[2] == '') then return {-3, j[1]} end
local lines = (j[3] or '') .. '\n'
local from, to = string.find(lines, '\n' .. ARGV[1] .. '\n', 1, true)
local holder = string.match(j[2] or '', ' (.*)$')
if ARGV[3] ~= '' then
  if holder ~= ARGV[3] and (j[2] or ARGV[2] == '') then return {0} end
  from = nil
elseif (j[2] and '1' or '') == ARGV[2] and not from and not (holder and ARGV[2] == '1') then
  return {0}
end
local wanted = {}
for i = 2, #KEYS do wanted[#wanted + 1], wanted[#wanted + 2] = KEYS[i], 'hash' end
local key = foreign(wanted)
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local since = int(now(KEYS[1])) .. (ARGV[3] ~= '' and ' ' .. ARGV[3] or '')

call('HDEL', KEYS[1], 'paused:' .. ARGV[1])
for i = 2, #KEYS do call('HDEL', KEYS[i], 'paused') end
if ARGV[2] == '1' then
  for i = 2, #KEYS do call('HSET', KEYS[i], 'paused', '1') end
  call('HSET', KEYS[1], 'paused:' .. ARGV[1], since)
end
if from then call('HSET', KEYS[1], 'held_back', string.sub(lines, 1, from) .. string.sub(lines, to + 1, -2)) end
return {1}
