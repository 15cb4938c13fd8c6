-- One step of a partition: all of it or nothing. Then the next entries, so that a step is one round trip.
-- KEYS: 1 inbox, 2 meta, 3 log, 4 waiting, 5 job; the rest by number
-- ARGV: 1 token   2 from entry   3 from record   4 to entry   5 to record   6 table version   7 sender name of this partition
--   8 mode: more (read on, give the ticket back if there is nothing), keep (read nothing), yield (to the back of the queue)
--   9 read from entry   10 records to read   11 bytes to read   12 bytes of the entries left behind
--   13 inbox_records   14 inbox_bytes   15 low mark (share)   16..20 taken, emitted, filtered, late, dead
--   then n, n values: fields of meta;  n, n values: fields of log
--   then w, w times: command, key number, n, n values   (HSET, HDEL, ZADD, ZREM, XADD)
--   then d, d times: inbox, meta, log, waiting as key numbers, kind (inbox or out), e, e times: kind (D, W, E), count, watermark, payload
-- Returns {0} idle: the ring flag is clear   {1, entries}   {2} yielded   {3} kept
--   -1 fenced   -2 moved on   -3 old table   -4 full: registered as waiting   -5 the job does not run   -7 foreign key type
-- The first write is an XTRIM or HDEL, which a Redis without memory lets through with all that follows.
local inbox, meta, log, waiting, job = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local limit_records, limit_bytes, low = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])

local j = call('HMGET', job, 'state', 'table')
if j[1] ~= 'running' and j[1] ~= 'draining' then return {-5} end
local m = call('HMGET', meta, 'token', 'pos', 'rec', 'bytes', 'taken', 'emitted', 'filtered', 'late', 'dead')
if m[1] ~= ARGV[1] then return {-1} end
if m[2] ~= ARGV[2] or m[3] ~= ARGV[3] then return {-2} end
if j[2] ~= ARGV[6] then return {-3} end

-- Find the sections, and check what could fail.
local key = foreign({inbox, 'stream', log, 'hash', waiting, 'hash', call('HGET', meta, 'queue'), 'list'})
if key then return {-7, key} end
local at = 21
local meta_at, meta_n = at + 1, tonumber(ARGV[at])
at = at + 1 + meta_n
local log_at, log_n = at + 1, tonumber(ARGV[at])
at = at + 1 + log_n
local writes = {}
local wanted = {HSET = 'hash', HDEL = 'hash', ZADD = 'zset', ZREM = 'zset', XADD = 'stream'}
local count = tonumber(ARGV[at])
at = at + 1
for i = 1, count do
  local write = {ARGV[at], KEYS[tonumber(ARGV[at + 1])], at + 3, tonumber(ARGV[at + 2])}
  key = foreign({write[2], wanted[write[1]]})
  if key then return {-7, key} end
  writes[i] = write
  at = at + 3 + write[4]
end
local outs = {}
count = tonumber(ARGV[at])
at = at + 1
for i = 1, count do
  local out = {}
  for k = 1, 4 do out[k] = KEYS[tonumber(ARGV[at + k - 1])] end
  out.kind, out.n, out.at = ARGV[at + 4], tonumber(ARGV[at + 5]), at + 6
  key = foreign({out[2], 'hash'})
  key = key or foreign({out[1], 'stream', out[3], 'hash', out[4], 'hash', call('HGET', out[2], 'queue'), 'list'})
  if key then return {-7, key} end
  local known = out.kind == 'out' and call('HMGET', out[2], 'readers', 'held', 'pos') or {true}
  out.readers, out.held = known[1], known[2]
  -- What only readers without a name have read may be trimmed, so it makes nothing full.
  if out.readers or (out.held and not before(known[3] or '1-0', out.held)) then
    local data = false
    for e = 0, out.n - 1 do data = data or ARGV[out.at + 4 * e] == 'D' end
    local records, bytes = backlog(out[2])
    if data and (records >= limit_records or bytes >= limit_bytes) then
      call('HDEL', meta, 'ring')
      call('HSET', out[4], meta, '1')
      call('HSET', meta, 'ring', 'w')
      return {-4, out[2]}
    end
  end
  outs[i] = out
  at = out.at + 4 * out.n
end

call('XTRIM', inbox, 'MINID', ARGV[4])
local function sum(a, b) return int(tonumber(a or 0) + tonumber(b)) end
call('HSET', meta, 'pos', ARGV[4], 'rec', ARGV[5], 'bytes', int(math.max(0, tonumber(m[4] or 0) - tonumber(ARGV[12]))),
  'taken', sum(m[5], ARGV[16]), 'emitted', sum(m[6], ARGV[17]), 'filtered', sum(m[7], ARGV[18]),
  'late', sum(m[8], ARGV[19]), 'dead', sum(m[9], ARGV[20]))
if meta_n > 0 then call('HSET', meta, unpack(ARGV, meta_at, meta_at + meta_n - 1)) end
if log_n > 0 then call('HSET', log, unpack(ARGV, log_at, log_at + log_n - 1)) end
for _, write in ipairs(writes) do
  for i = write[3], write[3] + write[4] - 1, 4000 do
    local j_ = math.min(i + 3999, write[3] + write[4] - 1)
    if write[1] == 'XADD' then
      call('XADD', write[2], '*', unpack(ARGV, i, j_))
    else
      call(write[1], write[2], unpack(ARGV, i, j_))
    end
  end
end
local sender = ARGV[7]
for _, out in ipairs(outs) do
  local last = tonumber(call('HGET', out[3], sender) or 0)
  for e = 0, out.n - 1 do
    local kind, n, watermark, payload = unpack(ARGV, out.at + 4 * e, out.at + 4 * e + 3)
    n = tonumber(n)
    if kind == 'D' then
      put(out[1], out[2], '["D","' .. sender .. '",' .. int(last + 1) .. ',' .. int(n) .. ',' .. watermark .. ',' .. j[2] .. ',[]]', payload, n)
      last = last + n
    elseif kind == 'W' then
      put(out[1], out[2], '["W","' .. sender .. '",' .. watermark .. ']', nil, 0)
    else
      put(out[1], out[2], '["E","' .. sender .. '"]', nil, 0)
    end
  end
  call('HSET', out[3], sender, int(last))
  if not out.readers then keep_newest(out[1], out[2], limit_records, limit_bytes, out.held) end
  ring(out[2])
end
if call('EXISTS', waiting) == 1 then
  local records, bytes = backlog(meta)
  if records <= low * limit_records and bytes <= low * limit_bytes then wake(waiting) end
end

if ARGV[8] == 'keep' then return {3} end
if ARGV[8] == 'yield' then
  local h = call('HMGET', meta, 'queue', 'ticket')
  call('HSET', meta, 'ring', '1')
  call('LPUSH', h[1], h[2])
  return {2}
end
-- Entry ids count records, so a bound by records is a bound by id.
local bound = int(tonumber(string.match(ARGV[9], '^(%d+)-')) + tonumber(ARGV[10]) - 1)
local few = tonumber(call('HGET', meta, 'bytes')) <= tonumber(ARGV[11]) and 4096 or 16
local entries, held, from = {}, 0, ARGV[9]
repeat
  local page = call('XRANGE', inbox, from, bound, 'COUNT', few)
  for _, entry in ipairs(page) do
    entries[#entries + 1] = entry
    if entry[2][4] then held = held + #entry[2][4] end
  end
  if #page > 0 then from = '(' .. page[#page][1] end
until #page < few or held >= tonumber(ARGV[11])
if #entries > 0 then
  call('HSET', meta, 'ring', '1')
  return {1, entries}
end
-- Whoever read ahead and holds entries is still at work: only an empty inbox clears the flag.
local h = call('HMGET', meta, 'head', 'sub')
if ARGV[4] ~= int(tonumber(h[1]) + 1) .. '-' .. h[2] then return {3} end
call('HDEL', meta, 'ring')
return {0}
