-- Registers a reader of an output stream, or finds it where it stood. A name that begins with _ is nobody's (see settle).
-- KEYS: out, meta, waiting, job
-- ARGV: reader, start (begin, end, or the number of the first record), milliseconds of silence after which it is
--   forgotten or '', inbox_records, inbox_bytes, low mark
-- Returns {1, place, 1 if it is new, made_at.generation, run id of the server that was adopted}, {-5} no such job, {-3, number of the oldest record kept} the start is trimmed,
--   {-4, number of the next record} the start is not there yet
local out, meta, name, start = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local j = call('HMGET', KEYS[4], 'made_at', 'generation', 'run_id')
if not j[1] then return {-5} end
local h = call('HMGET', meta, 'r:' .. name, 'pos', 'head', 'sub')
local place, oldest = h[1], h[2] or '1-0'
local next_ = tonumber(h[3] or 0) + 1
if not place and start == 'begin' then place = oldest end
if not place and (start == 'end' or tonumber(start) == next_) then place = int(next_) .. '-' .. (h[4] or '0') end
if not place then
  local number, first = tonumber(start), tonumber(string.match(oldest, '^(%d+)-'))
  if number > next_ then return {-4, next_} end
  if number < first then return {-3, first} end
  -- The last entry that begins at or in front of the record holds it.
  local entry = call('XREVRANGE', out, int(number), '-', 'COUNT', 1)[1][1]
  local skipped = number - tonumber(string.match(entry, '^(%d+)-'))
  place = skipped == 0 and entry or entry .. '/' .. int(skipped)
end
settle(out, meta, KEYS[3], name, place, tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]))
if ARGV[3] == '' then
  call('HDEL', meta, 'x:' .. name)
else
  call('HSET', meta, 'x:' .. name, ARGV[3])
end
return {1, place, h[1] and 0 or 1, j[1] .. '.' .. j[2], j[3]}
