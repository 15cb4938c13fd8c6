-- A job that has halted since writes were lost goes on without them, under the next generation. Every ownership, lease and
-- sender of the one before ends; senders keep their numbers and positions under their new names.
-- KEYS: job, control, leader, assignment, senders, visitors, then the metas of the partitions, then of the outputs, then the
--   logs of the entry partitions    ARGV: generation that is accepted, number of partitions, number of outputs
-- Returns {1, generation, state}, {0} nothing was lost, {-2} another generation, {-3, state} it works, or is finished,
--   {-5} no such job
local job, leader, senders, visitors = KEYS[1], KEYS[3], KEYS[5], KEYS[6]
local j = call('HMGET', job, 'state', 'generation', 'made_at', 'lost', 'halted', 'accepted')
if not j[1] then return {-5} end
if j[2] ~= ARGV[1] then return {-2} end
if not j[4] then return {0} end
if j[1] ~= 'failed' and j[1] ~= 'cancelled' and j[1] ~= 'suspended' then return {-3, j[1]} end
local metas, outs, logs = {}, {}, {}
for i = 7, #KEYS do
  local at = i <= 6 + tonumber(ARGV[2]) and metas or i <= 6 + tonumber(ARGV[2]) + tonumber(ARGV[3]) and outs or logs
  at[#at + 1] = KEYS[i]
end
local generation = int(tonumber(j[2]) + 1)
local time, ahead = now(job)
local elapsed = time - tonumber(j[3])
local named, all = {}, call('HGETALL', senders)
local prefix = 'n:' .. j[2] .. '/'
for i = 1, #all, 2 do
  if string.sub(all[i], 1, #prefix) == prefix then named[#named + 1] = {all[i], string.sub(all[i], #prefix + 1), all[i + 1]} end
end
local epochs = {}
for _, log in ipairs(logs) do
  local fields = call('HGETALL', log)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'e:' then
      epochs[#epochs + 1] = {log, fields[i], int(math.max(tonumber(fields[i + 1]) + 1, elapsed))}
    end
  end
end
local visits = call('ZRANGE', visitors, 0, -1, 'WITHSCORES')

if foreign({KEYS[2], 'stream'}) then return redis.error_reply('WRONGTYPE ' .. KEYS[2]) end
keep_time(job, time, ahead)
end_ownerships(metas, outs, KEYS[4], elapsed)
call('HDEL', job, 'lost', 'halted', 'reason')
call('HDEL', leader, 'token', 'until')
for _, sender in ipairs(named) do
  call('HDEL', senders, sender[1])
  call('HSET', senders, 'n:' .. generation .. '/' .. sender[2], sender[3])
end
for _, epoch in ipairs(epochs) do call('HSET', epoch[1], epoch[2], epoch[3]) end
for i = 1, #visits, 2 do
  local place, name = string.match(visits[i], '^(%S+ %d+) ' .. j[2] .. '/(.*)$')
  if place then
    call('ZREM', visitors, visits[i])
    call('ZADD', visitors, visits[i + 1], place .. ' ' .. generation .. '/' .. name)
  end
end
local state = j[5] == 'draining' and 'draining' or 'running'
call('HSET', job, 'generation', generation, 'run_id', server, 'accepted', j[4])
enter(job, state, '')
call('XADD', KEYS[2], 'MAXLEN', '~', 1000, '*', 'kind', 'State', 'state', state)
return {1, generation, state}
