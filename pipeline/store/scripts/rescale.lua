-- The switch: from here on the keys of one stage go to another number of partitions. All inboxes of the stage are marked
-- with a Table entry; a partition *arrives* when all in front of its mark is committed, and passes its mark when all have
-- arrived that give keys to it (`gate`). What has arrived already is counted here, the rest by commit.lua.
-- KEYS: leader, job, operation, control, then inbox, meta, log, waiting of each partition that the stage has or gets, then the logs of
--   the partitions that it feeds
-- ARGV: leader token, operation id, table version until now, number of partitions until now, number from now on, stage, plan,
--   then for each partition those that it gives keys to, with a space between
-- Returns {1, milliseconds that it has taken}, {0} it was done before, {-1} no longer the leader, {-2} the operation is gone,
--   {-3} the table has changed, {-5} the job does not run, {-6} this run of the server is not adopted yet, {-7} the stage is
--   ending, {-9} partitions that come back have ended, and those behind have not heard of it yet
-- The first write is an HDEL, which a Redis without memory lets through.
local leader, job, operation, control = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local before_n, after_n, stage = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local all = math.max(before_n, after_n)
local key = foreign({job, 'hash', operation, 'hash', control, 'stream'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
if not leads(leader, ARGV[1]) then return {-1} end
local o = call('HMGET', operation, 'id', 'phase')
if o[1] ~= ARGV[2] then return {-2} end
if o[2] ~= 'waiting' then return {0} end
local j = call('HMGET', job, 'state', 'table', 'run_id')
if j[1] ~= 'running' then return {-5} end
if j[3] ~= server then return {-6} end
if j[2] ~= ARGV[3] then return {-3} end
local found = uncountable(job, 'table', 'now', 'ahead')
if found then return refusal(found) end
local started = call('TIME')

-- The partitions: where each stands, and what could fail.
local parts, comes_back = {}, {}
for n = 0, all - 1 do
  local at = 5 + 4 * n
  local part = {inbox = KEYS[at], meta = KEYS[at + 1], log = KEYS[at + 2], waiting = KEYS[at + 3], gate = 0}
  key = foreign({part.inbox, 'stream', part.meta, 'hash', part.log, 'hash', part.waiting, 'hash'})
  if key then return redis.error_reply('WRONGTYPE ' .. key) end
  local m = call('HMGET', part.meta, 'pos', 'head', 'sub', 'done', 'queue')
  found = unfit(part.inbox, part.meta)
  if found then return refusal(found) end
  key = foreign({m[5], 'list'})
  if key then return redis.error_reply('WRONGTYPE ' .. key) end
  for _, waiter in ipairs(call('HKEYS', part.waiting)) do
    local w = redis.pcall('HMGET', waiter, 'ring', 'queue', 'ticket')
    if w.err or (w[1] == 'w' and not (w[2] and w[3])) or foreign({w[2], 'list'}) then return refusal(waiter) end
  end
  if n < before_n and m[4] then return {-7} end
  if n >= before_n and m[1] then comes_back[#comes_back + 1] = 'w:' .. stage .. '.' .. n end
  part.is_new = not m[1]
  part.mark = int(tonumber(m[2] or 0) + 1) .. '-' .. int(tonumber(m[3] or 0))
  part.has_arrived = n < before_n and m[1] == part.mark
  part.tells = ARGV[8 + n]
  part.promises = {}
  local log = call('HGETALL', part.log)
  for i = 1, #log, 2 do
    if string.sub(log[i], 1, 2) == 'w:' then
      found = no_number(part.log, {log[i]}, {log[i + 1]})
      if found then return refusal(found) end
      part.promises[log[i]] = log[i + 1]
    end
  end
  parts[n] = part
end

-- Those that the stage feeds hold time back for the new senders as for the slowest of the old ones.
local senders, fresh, lowest = {}, {}, {}
for n = 0, before_n - 1 do senders[#senders + 1] = 'w:' .. stage .. '.' .. n end
for n = before_n, all - 1 do fresh[#fresh + 1] = 'w:' .. stage .. '.' .. n end
for i = 5 + 4 * all, #KEYS do
  if #fresh == 0 then break end
  key = foreign({KEYS[i], 'hash'})
  if key then return redis.error_reply('WRONGTYPE ' .. key) end
  local ended = #comes_back > 0 and call('HMGET', KEYS[i], unpack(comes_back)) or {}
  for k = 1, #comes_back do
    if ended[k] ~= '9007199254740991' then return {-9} end
  end
  local promised = call('HMGET', KEYS[i], unpack(senders))
  found = no_number(KEYS[i], senders, promised)
  if found then return refusal(found) end
  local low
  for k = 1, #senders do
    if not promised[k] then low = nil break end
    if not low or tonumber(promised[k]) < tonumber(low) then low = promised[k] end
  end
  lowest[i] = low or false
end

local version = int(tonumber(j[2]) + 1)
call('HDEL', operation, 'now')
call('HSET', job, 'plan', ARGV[7], 'table', version)
for n = 0, all - 1 do
  local part = parts[n]
  if n >= before_n then
    local names = {}
    for name, _ in pairs(part.promises) do names[#names + 1] = name end
    for i = 1, #names, 4000 do call('HDEL', part.log, unpack(names, i, math.min(i + 3999, #names))) end
    part.promises = {}
    call('HDEL', part.meta, 'done', 'watermark', 'arrived', 'ring')
    if part.is_new then
      call('HSET', part.meta, 'pos', '1-0', 'rec', '0', 'head', '0', 'sub', '0', 'bytes', '0', 'term', '0')
    end
    call('HSET', part.meta, 'fresh', '1')
  end
  for to in string.gmatch(part.tells, '%d+') do
    local other = parts[tonumber(to)]
    if not part.has_arrived then
      other.gate = other.gate + 1
    elseif tonumber(to) >= before_n then
      for name, time in pairs(part.promises) do
        if not other.heard then other.heard = {} end
        if not other.heard[name] or tonumber(other.heard[name]) < tonumber(time) then other.heard[name] = time end
      end
    end
  end
end
for n = 0, all - 1 do
  local part = parts[n]
  put(part.inbox, part.meta, '["T",' .. version .. ']')
  local fields = {'switch', part.mark, 'before', int(before_n), 'gate', int(part.gate)}
  if part.tells ~= '' and not part.has_arrived then fields[7], fields[8] = 'tells', part.tells end
  call('HSET', part.meta, unpack(fields))
  local heard = {}
  for name, time in pairs(part.heard or {}) do heard[#heard + 1], heard[#heard + 2] = name, time end
  for i = 1, #heard, 4000 do call('HSET', part.log, unpack(heard, i, math.min(i + 3999, #heard))) end
  ring(part.meta)
  wake(part.waiting)
end
for i, low in pairs(lowest) do
  local promised = {}
  for _, name in ipairs(fresh) do promised[#promised + 1], promised[#promised + 2] = name, low end
  if low then call('HSET', KEYS[i], unpack(promised)) else call('HDEL', KEYS[i], unpack(fresh)) end
end
local time, ahead = now(job)
keep_time(job, time, ahead)
call('HSET', operation, 'phase', 'settling', 'switched_at', int(time), 'since', int(time))
call('XADD', control, 'MAXLEN', '~', 1000, '*', 'kind', 'Table', 'table', version)
local ended = call('TIME')
return {1, math.floor((ended[1] - started[1]) * 1000 + (ended[2] - started[2]) / 1000)}
