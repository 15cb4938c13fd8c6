-- Appends one batch of an external sender to its entry inbox, and rings.
-- KEYS: inbox, meta, log, job
-- ARGV: sender id, epoch, first number, count, payload, watermark or '', inbox_records, inbox_bytes
-- Returns {code, last number taken}:
--   1 appended   2 all of it was taken before   3 a part was: resend from last + 1   -1 unknown sender
--   -2 a newer instance of the sender exists    -3 closed   -4 full   -5 no such job   -6 a gap: resend from last + 1
-- The first write is an XADD, so a Redis without memory refuses the whole script.
local inbox, meta, log, job = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local sender, first, count = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local j = call('HMGET', job, 'state', 'gate', 'table')
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
local records, bytes = backlog(meta)
if j[2] == 'closed' or records >= tonumber(ARGV[7]) or bytes >= tonumber(ARGV[8]) then return {-4, last} end
if first ~= last + 1 then return {-6, last} end

local watermark = ARGV[6] == '' and 'null' or ARGV[6]
local header = '["D","' .. sender .. '",' .. int(first) .. ',' .. int(count) .. ',' .. watermark .. ',' .. j[3] .. ',[]]'
put(inbox, meta, header, ARGV[5], count)
call('HSET', log, sender, int(first + count - 1))
ring(meta)
return {1, first + count - 1}
