-- Appends one batch of an external sender to its entry inbox, and rings.
-- KEYS: inbox, meta, log, job; then the sets of remembered ids that this batch meets, if its records have ids
-- ARGV: sender id, epoch, first number, count, payload, watermark or '', inbox_records, inbox_bytes, position or '';
--   with ids also: milliseconds that an id is remembered, most ids in a set; then for each set: the records' indices in
--   the batch, with a space between, and their ids' digests of 16 bytes, one behind the other
-- Returns {code, last number taken}:
--   1 appended   2 all of it was taken before   3 a part was: resend from last + 1   -1 unknown sender
--   -2 a newer instance of the sender exists    -3 closed   -4 full   -5 no such job   -6 a gap: resend from last + 1
--   -7 the source is paused
-- The first write is an XADD, so a Redis without memory refuses the whole script.
-- A position (where a source reads on; opaque here) is that behind the last record of this batch, and is stored with that
-- record's number, in the write that takes it. Whoever cuts a batch gives each piece the position behind its own last record,
-- or none: then the stored one stays where it is, behind the numbers, and a reader skips by counting. It is never ahead.
local inbox, meta, log, job = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local sender, first, count = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local j = call('HMGET', job, 'state', 'gate', 'table', 'run_id', 'tee')
if not j[1] then return {-5, 0} end
local known = call('HMGET', log, sender, 'e:' .. sender)
if not known[1] then return {-1, 0} end
local last = tonumber(known[1])
if tonumber(ARGV[2]) < tonumber(known[2]) then return {-2, last} end
if last >= first + count - 1 then
  redis.pcall('HINCRBY', meta, 'duplicate', count)  -- refused when memory is full; the answer holds all the same
  return {2, last}
end
if last >= first then return {3, last} end
if j[1] ~= 'running' or call('HGET', meta, 'closed') then return {-3, last} end
if call('HGET', meta, 'paused') then return {-7, last} end
local records, bytes = backlog(meta)
-- Until the leader has noted where the inboxes stood when the server began, nothing comes behind that.
if j[2] == 'closed' or j[4] ~= server or records >= tonumber(ARGV[7]) or bytes >= tonumber(ARGV[8]) then return {-4, last} end
if first ~= last + 1 then return {-6, last} end

-- A record whose id was seen before, here or in an earlier batch, keeps its number; the header says to skip it.
local found = no_number(job, {'table'}, {j[3]})
if found then return refusal(found) end

local skip, fresh, at = {}, {}, 0
if #KEYS > 4 then
  local time = call('TIME')
  -- What is remembered since the cut of a savepoint is told from what was before by its time.
  at = math.max(time[1] * 1000 + math.floor(time[2] / 1000), tonumber(call('HGET', job, 'cut_at') or 0) + 1)
  for k = 5, #KEYS do
    local n, new, seen = 0, {}, {}
    for index in string.gmatch(ARGV[2 * k + 2], '%d+') do
      local digest = string.sub(ARGV[2 * k + 3], n + 1, n + 16)
      local score = call('ZSCORE', KEYS[k], digest)
      if seen[digest] or (score and tonumber(score) >= at - tonumber(ARGV[10])) then
        skip[#skip + 1] = index
      else
        new[#new + 1] = digest
      end
      seen[digest] = true
      n = n + 16
    end
    fresh[k] = new
  end
end

if #skip > 0 then
  found = uncountable(meta, 'duplicate')
  if found then return refusal(found) end
end
local shadow
if j[5] then
  shadow, found = tee_of(job, inbox)
  if found then return refusal(found) end
end
local watermark = ARGV[6] == '' and 'null' or ARGV[6]
local header = '["D","' .. sender .. '",' .. int(first) .. ',' .. int(count) .. ',' .. watermark .. ',' .. j[3] .. ',['
  .. table.concat(skip, ',') .. ']]'
local id = put(inbox, meta, header, ARGV[5], count)
if shadow then tee(job, shadow, id, header, ARGV[5]) end
call('HSET', log, sender, int(first + count - 1))
if ARGV[9] and ARGV[9] ~= '' then call('HSET', log, 'p:' .. sender, int(first + count - 1) .. ' ' .. ARGV[9]) end
for k = 5, #KEYS do
  call('ZREMRANGEBYSCORE', KEYS[k], '-inf', '(' .. int(at - tonumber(ARGV[10])))
  for _, digest in ipairs(fresh[k]) do call('ZADD', KEYS[k], int(at), digest) end
  call('ZREMRANGEBYRANK', KEYS[k], 0, -tonumber(ARGV[11]) - 1)
  if #fresh[k] > 0 then call('PEXPIRE', KEYS[k], ARGV[10]) end
end
if #skip > 0 then call('HINCRBY', meta, 'duplicate', #skip) end
ring(meta)
return {1, first + count - 1}
