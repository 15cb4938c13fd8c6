-- One step of a partition: all of it or nothing. Then the next entries, so that a step is one round trip.
-- KEYS: 1 inbox, 2 meta, 3 log, 4 waiting, 5 job; the rest by number
-- ARGV: 1 token   2 from entry   3 from record   4 to entry   5 to record   6 table version   7 sender name of this partition
--   8 mode: more (read on, give the ticket back if there is nothing), keep (read nothing), yield (to the back of the queue)
--   9 read from entry   10 records to read   11 bytes to read   12 bytes of the entries left behind
--   13 inbox_records   14 inbox_bytes   15 low mark (share)   16..20 taken, emitted, filtered, late, dead
--   then n, n values: fields of meta;  n, n values: fields of log
--   then '', or as MessagePack a list of writes: command, key number, whether this owner knows the key's type, lengths of
--     the values (HSET, HDEL, HINCRBY, ZADD, ZREM, XADD);  the values of all writes, one behind the other. An argument for
--     each would cost more than what is done with it, and the MessagePack of Redis 6.2 knows no bytes
--   then d, d times: inbox, meta, log, waiting as key numbers, kind (inbox or out), e, e times: kind (D, W, E), count, watermark, payload
-- Returns {0} idle: the ring flag is clear   {1, entries}   {2} yielded   {3} kept
--   -1 fenced   -2 moved on   -3 old table   -4 full: registered as waiting   -5 the job does not run
--   -8 gated: at this entry the number of the stage's partitions changes, and others have still to give it their keys
--   -6 this run of the server is not adopted yet   -7 foreign, with the key, or the key and a field: something that no
--   script of ours has written
-- The first write is an HDEL or XTRIM, which a Redis without memory lets through with all that follows.
-- Calls cost more than what they do: each key is read once, and written once.
-- While the job has an open epoch (see cut.lua) it also keeps how things were at the cut: of each state, timer and held key
-- that it changes for the first time since, the value before, or '' for what was not there; of the inbox the entries that it
-- leaves behind in front of the mark. The field '' of such a hash says how many bytes it keeps, or x when it is exported.
local inbox, meta, log, waiting, job = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local limit_records, limit_bytes, low = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
local sender, mode = ARGV[7], ARGV[8]

local j = call('HMGET', job, 'state', 'table', 'run_id', 'epoch')
if j[1] ~= 'running' and j[1] ~= 'draining' then return {-5} end
if j[3] ~= server then return {-6} end
local m = call('HMGET', meta, 'token', 'pos', 'rec', 'bytes', 'taken', 'emitted', 'filtered', 'late', 'dead',
  'head', 'sub', 'queue', 'ticket', 'ring', 'mark', 'switch', 'gate')
if m[1] ~= ARGV[1] then return {-1} end
if m[2] ~= ARGV[2] or m[3] ~= ARGV[3] then return {-2} end
if j[2] ~= ARGV[6] then return {-3} end
local switch, gives = m[16], {}
if switch then
  if ARGV[2] ~= switch and before(ARGV[2], switch) and before(switch, ARGV[4]) then return {-2} end
  local key = no_number(meta, {'gate'}, {m[17]})
  if key then return {-7, key} end
  if ARGV[2] == switch and tonumber(m[17] or 0) > 0 then
    call('HDEL', meta, 'ring')
    call('HSET', meta, 'ring', 'g')
    return {-8}
  end
end

-- Find the sections, and check what could fail.
if mode == 'yield' and not (m[12] and m[13]) then return {-7, meta .. ' ticket'} end
local key = foreign({inbox, 'stream', mode == 'yield' and m[12], 'list'})
if key then return {-7, key} end
key = no_number(meta, {'bytes', 'taken', 'emitted', 'filtered', 'late', 'dead', 'head', 'sub'},
  {m[4], m[5], m[6], m[7], m[8], m[9], m[10], m[11]})
if key then return {-7, key} end
-- A header of another program's may count records that there are not: the position would pass the end for good.
if tonumber(string.match(ARGV[4], '^%d+')) > tonumber(m[10] or 0) + 1 then return {-7, inbox} end
local waiters = redis.pcall('HLEN', waiting)
if type(waiters) == 'table' then return {-7, waiting} end
local at = 21
local meta_at, meta_n = at + 1, tonumber(ARGV[at])
at = at + 1 + meta_n
local log_at, log_n = at + 1, tonumber(ARGV[at])
at = at + 1 + log_n
if log_n > 0 and foreign({log, 'hash'}) then return {-7, log} end
if switch and ARGV[4] == switch and ARGV[2] ~= switch then
  gives, key = receivers(string.sub(job, 1, -5), meta, log, {unpack(ARGV, log_at, log_at + log_n - 1)})
  if not gives then return {-7, key} end
end
local writes = ARGV[at] ~= '' and cmsgpack.unpack(ARGV[at]) or {}
local data, from = ARGV[at + 1], 1
local wanted = {HSET = 'hash', HDEL = 'hash', HINCRBY = 'hash', ZADD = 'zset', ZREM = 'zset', XADD = 'stream'}
for _, write in ipairs(writes) do
  local name, values = KEYS[write[2]], write[4]
  write[2] = name
  for i, length in ipairs(values) do
    values[i], from = string.sub(data, from, from + length - 1), from + length
  end
  if not write[3] and foreign({name, wanted[write[1]]}) then return {-7, name} end
  if write[1] == 'HINCRBY' and not string.match(call('HGET', name, values[1]) or '0', '^%-?%d+$') then
    return {-7, name}
  end
end
local outs = {}
local count = tonumber(ARGV[at + 2])
at = at + 3
for i = 1, count do
  local out = {}
  for k = 1, 4 do out[k] = KEYS[tonumber(ARGV[at + k - 1])] end
  out.kind, out.n, out.at = ARGV[at + 4], tonumber(ARGV[at + 5]), at + 6
  out.m = redis.pcall('HMGET', out[2], 'head', 'sub', 'bytes', 'pos', 'rec', 'ring', 'queue', 'ticket', 'readers', 'held')
  if out.m.err then return {-7, out[2]} end
  out.last = redis.pcall('HGET', out[3], ARGV[7])
  if type(out.last) == 'table' then return {-7, out[3]} end
  out.rings = not out.m[6] and out.m[7]
  key = foreign({out[1], 'stream', out.rings and out.m[7], 'list'})
  if key then return {-7, key} end
  key = no_number(out[2], {'head', 'sub', 'bytes'}, out.m) or no_number(out[3], {sender}, {out.last})
  if key then return {-7, key} end
  out.head, out.sub, out.bytes = tonumber(out.m[1] or 0), tonumber(out.m[2] or 0), tonumber(out.m[3] or 0)
  if out.rings and not out.m[8] then return {-7, out[2] .. ' ticket'} end
  out.readers = out.kind ~= 'out' or out.m[9]
  -- What only readers without a name have read may be trimmed, so it makes nothing full.
  if out.readers or (out.m[10] and not before(out.m[4] or '1-0', out.m[10])) then
    local data = false
    for e = 0, out.n - 1 do data = data or ARGV[out.at + 4 * e] == 'D' end
    if data and (records_behind(out.head, out.m[4], out.m[5]) >= limit_records or out.bytes >= limit_bytes) then
      if foreign({out[4], 'hash'}) then return {-7, out[4]} end
      call('HDEL', meta, 'ring')
      call('HSET', out[4], meta, '1')
      call('HSET', meta, 'ring', 'w')
      return {-4, out[2]}
    end
  end
  outs[i] = out
  at = out.at + 4 * out.n
end

local cut, kept, passed, was_inbox, limit, is_behind
if j[4] then
  local root = string.sub(job, 1, -5)
  cut, kept, passed = {root .. ':savepoint', root .. ':was'}, {}, {}
  key = foreign({cut[1], 'hash', cut[2], 'set'})
  if key then return {-7, key} end
  limit = tonumber(call('HGET', cut[1], 'limit') or 0)
  for _, write in ipairs(writes) do
    local rest = string.sub(write[2], #root + 1)
    local what = string.match(rest, '^:(%a+):')
    if what == 'state' or what == 'timers' or what == 'held' or what == 'heldrecords' then
      local was = root .. ':was' .. rest
      local size = redis.pcall('HGET', was, '')
      if type(size) == 'table' then return {-7, was} end
      if size ~= 'x' then
        local pairs_, bytes, names = {}, 0, {}
        local step = (write[1] == 'HSET' or write[1] == 'ZADD') and 2 or 1
        for i = write[1] == 'ZADD' and 2 or 1, #write[4], step do names[#names + 1] = write[4][i] end
        local fresh = {}
        for i = 1, #names, 4000 do
          local to = math.min(i + 3999, #names)
          for n, old in ipairs(call('HMGET', was, unpack(names, i, to))) do
            if not old then fresh[#fresh + 1] = names[i + n - 1] end
          end
        end
        for i = 1, #fresh, 4000 do
          local to = math.min(i + 3999, #fresh)
          for n, old in ipairs(call(what == 'timers' and 'ZMSCORE' or 'HMGET', write[2], unpack(fresh, i, to))) do
            local name = fresh[i + n - 1]
            pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = name, old or ''
            bytes = bytes + #name + #(old or '') + 64
          end
        end
        if #pairs_ > 0 then kept[#kept + 1] = {was, pairs_, bytes, not size} end
      end
    end
  end
  if m[15] and ARGV[4] ~= ARGV[2] then
    was_inbox, is_behind = root .. ':was' .. string.sub(inbox, #root + 1), not before(ARGV[4], m[15])
    if foreign({was_inbox, 'stream'}) then return {-7, was_inbox} end
    passed = call('XRANGE', inbox, '-', '(' .. (is_behind and m[15] or ARGV[4]))
  end
end

-- Entries first: an id that another program has made impossible refuses the whole commit. The HDEL shrinks, and does nothing.
if #outs > 0 then call('HDEL', meta, 'nothing') end
local added = {}
for _, out in ipairs(outs) do
  local last = tonumber(out.last or 0)
  for e = 0, out.n - 1 do
    local kind, n, watermark, payload = unpack(ARGV, out.at + 4 * e, out.at + 4 * e + 3)
    local id, answer = int(out.head + 1) .. '-' .. int(out.sub), nil
    if kind == 'D' then
      n = tonumber(n)
      answer = redis.pcall('XADD', out[1], id, 'h', '["D","' .. sender .. '",' .. int(last + 1) .. ',' .. int(n) .. ','
        .. watermark .. ',' .. j[2] .. ',[]]', 'd', payload)
      last, out.head, out.sub, out.bytes = last + n, out.head + n, 0, out.bytes + #payload
    else
      answer = redis.pcall('XADD', out[1], id, 'h',
        kind == 'W' and '["W","' .. sender .. '",' .. watermark .. ']' or '["E","' .. sender .. '"]')
      out.sub = out.sub + 1
    end
    if type(answer) == 'table' then
      -- Also the streams' last ids, or the same ids would be refused when what is foreign has been taken away.
      for i = #added, 1, -1 do
        call('XDEL', added[i][1], added[i][2])
        local top = call('XREVRANGE', added[i][1], '+', '-', 'COUNT', 1)[1]
        call('XSETID', added[i][1], top and top[1] or '0-1')
      end
      return {-7, out[1]}
    end
    added[#added + 1] = {out[1], id}
  end
  out.last = last
end

-- A commit of nothing only reads on.
local head, sub = tonumber(m[10] or 0), tonumber(m[11] or 0)
local bytes = math.max(0, tonumber(m[4] or 0) - tonumber(ARGV[12]))
local fields = {}
if ARGV[4] ~= ARGV[2] or ARGV[5] ~= ARGV[3] or meta_n + log_n + #writes + #outs > 0 then
  call('XTRIM', inbox, 'MINID', ARGV[4])
  local function sum(a, b) return int(tonumber(a or 0) + tonumber(b)) end
  fields = {'pos', ARGV[4], 'rec', ARGV[5], 'bytes', int(bytes), 'taken', sum(m[5], ARGV[16]), 'emitted', sum(m[6], ARGV[17]),
    'filtered', sum(m[7], ARGV[18]), 'late', sum(m[8], ARGV[19]), 'dead', sum(m[9], ARGV[20]),
    unpack(ARGV, meta_at, meta_at + meta_n - 1)}
end
if cut then
  local bytes = 0
  for _, keep in ipairs(kept) do
    for i = 1, #keep[2], 4000 do call('HSET', keep[1], unpack(keep[2], i, math.min(i + 3999, #keep[2]))) end
    call('HINCRBY', keep[1], '', keep[3])
    if keep[4] then call('SADD', cut[2], keep[1]) end
    bytes = bytes + keep[3]
  end
  if #passed > 0 then
    local size = 0
    for _, entry in ipairs(passed) do
      call('XADD', was_inbox, entry[1], unpack(entry[2]))
      size = size + #(entry[2][4] or '') + 64
    end
    call('SADD', cut[2], was_inbox)
    call('HINCRBY', cut[1], was_inbox, size)
    bytes = bytes + size
  end
  if is_behind then call('HDEL', meta, 'mark') end
  if bytes > 0 and call('HINCRBY', cut[1], 'bytes', bytes) > limit then
    call('HDEL', job, 'epoch')
    call('HSET', cut[1], 'given_up', 'full')
  end
end
for _, write in ipairs(writes) do
  local values = write[4]
  for i = 1, #values, 4000 do
    if write[1] == 'XADD' then
      call('XADD', write[2], '*', unpack(values, i, math.min(i + 3999, #values)))
    else
      call(write[1], write[2], unpack(values, i, math.min(i + 3999, #values)))
    end
  end
end
for _, out in ipairs(outs) do
  call('HSET', out[3], sender, int(out.last))
  local fields = {'head', int(out.head), 'sub', int(out.sub), 'bytes', int(out.bytes)}
  if out.rings then
    fields[7], fields[8] = 'ring', '1'
    call('LPUSH', out.m[7], out.m[8])
  end
  call('HSET', out[2], unpack(fields))
  if not out.readers then keep_newest(out[1], out[2], limit_records, limit_bytes, out.m[10]) end
end
if log_n > 0 then call('HSET', log, unpack(ARGV, log_at, log_at + log_n - 1)) end
if switch and ARGV[4] == switch and ARGV[2] ~= switch then
  arrive(gives)
  call('HDEL', meta, 'tells')
elseif switch and ARGV[2] == switch and ARGV[4] ~= switch then
  call('HDEL', meta, 'switch', 'before', 'gate', 'tells', 'fresh')
end

local entries = mode == 'more' and read_on(inbox, ARGV[9], ARGV[10], ARGV[11], bytes) or {}
-- Whoever read ahead and holds entries is still at work: only an empty inbox clears the flag.
local is_idle = mode == 'more' and #entries == 0 and ARGV[4] == int(head + 1) .. '-' .. int(sub)
if is_idle then
  call('HDEL', meta, 'ring')
elseif m[14] ~= '1' and (mode == 'yield' or #entries > 0) then
  call('HDEL', meta, 'ring')
  fields[#fields + 1], fields[#fields + 2] = 'ring', '1'
end
if #fields > 0 then call('HSET', meta, unpack(fields)) end
if waiters > 0 and records_behind(head, ARGV[4], ARGV[5]) <= low * limit_records and bytes <= low * limit_bytes then
  wake(waiting)
end

if mode == 'keep' then return {3} end
if mode == 'yield' then
  call('LPUSH', m[12], m[13])
  return {2}
end
if is_idle then return {0} end
if #entries == 0 then return {3} end
return {1, entries}
