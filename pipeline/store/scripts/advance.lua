-- A reader is done with everything in front of an entry; the stream is trimmed to the slowest reader, waiters are woken.
-- KEYS: out, meta, waiting    ARGV: reader, from entry, to entry, inbox_records, inbox_bytes, low mark
-- Returns {1}, {-1} no such reader, {-2, entry} it stands elsewhere
local meta = KEYS[2]
local at = call('HGET', meta, 'r:' .. ARGV[1])
if not at then return {-1} end
if at ~= ARGV[2] then return {-2, at} end
local function parts(id) local a, b = string.match(id, '^(%d+)-(%d+)$') return tonumber(a), tonumber(b) end
local slowest = ARGV[3]
local all = call('HGETALL', meta)
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 2) == 'r:' and all[i] ~= 'r:' .. ARGV[1] then
    local a, b = parts(all[i + 1])
    local c, d = parts(slowest)
    if a < c or (a == c and b < d) then slowest = all[i + 1] end
  end
end
local freed = 0
for _, entry in ipairs(call('XRANGE', KEYS[1], '-', '(' .. slowest)) do freed = freed + #(entry[2][4] or '') end
call('XTRIM', KEYS[1], 'MINID', slowest)
call('HSET', meta, 'r:' .. ARGV[1], ARGV[3], 'pos', slowest, 'rec', '0',
  'bytes', int(math.max(0, tonumber(call('HGET', meta, 'bytes') or 0) - freed)))
local records, bytes = backlog(meta)
if records <= tonumber(ARGV[6]) * tonumber(ARGV[4]) and bytes <= tonumber(ARGV[6]) * tonumber(ARGV[5]) then wake(KEYS[3]) end
return {1}
