-- Gives a shadow the next entries of one entry inbox: taken from those that wait, put into the inbox of its job.
-- KEYS: shadow, where they wait, then of the shadow's job: job, inbox, meta, log
-- ARGV: token, most entries, inbox_records, inbox_bytes
-- Returns {1, entries given, entries that still wait}, {-1} the shadow was taken away, {-2} it does not work, {-7} its inbox ends
--   where no entry of these fits
-- The first write is an XDEL, which a Redis without memory lets through.
local record, waiting, job, inbox, meta, log = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local key = foreign({record, 'hash', waiting, 'stream', job, 'hash', inbox, 'stream', meta, 'hash', log, 'hash',
  call('HGET', meta, 'queue'), 'list'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
if call('HGET', record, 'token') ~= ARGV[1] then return {-1} end
local j = call('HMGET', job, 'state', 'run_id')
if (j[1] ~= 'running' and j[1] ~= 'draining') or j[2] ~= server then return {-2} end
local found = unfit(inbox, meta) or uncountable(record, 'bytes')
if found then return refusal(found) end
local records, bytes = backlog(meta)
local m = call('HMGET', meta, 'head', 'sub')
local head, sub = tonumber(m[1] or 0), tonumber(m[2] or 0)
local page, moved, size = call('XRANGE', waiting, '-', '+', 'COUNT', ARGV[2]), {}, 0
for _, entry in ipairs(page) do
  if records >= tonumber(ARGV[3]) or bytes >= tonumber(ARGV[4]) then break end
  if entry[1] ~= int(head + 1) .. '-' .. int(sub) then return {-7} end
  local header, payload = entry[2][2], entry[2][4]
  local one = {header = header, payload = payload, count = 0}
  if payload then
    local sender, first, count = string.match(header, '^%["D","([^"]*)",(%d+),(%d+),')
    if not sender then return {-7} end
    one.sender, one.count, one.last = sender, tonumber(count), tonumber(first) + tonumber(count) - 1
  end
  head, sub = head + one.count, one.count > 0 and 0 or sub + 1
  records, bytes, size = records + one.count, bytes + #(payload or ''), size + #header + #(payload or '') + 64
  moved[#moved + 1] = one
end
for i in ipairs(moved) do call('XDEL', waiting, page[i][1]) end
for _, one in ipairs(moved) do
  put(inbox, meta, one.header, one.payload, one.count)
  if one.sender then
    call('HSET', log, one.sender, int(one.last))
  else
    call('HSET', meta, 'closed', '1')
  end
end
if #moved > 0 then
  call('HSET', record, 'bytes', int(math.max(0, tonumber(call('HGET', record, 'bytes') or 0) - size)))
  ring(meta)
end
return {1, #moved, call('XLEN', waiting)}
