-- The exporter of a savepoint is at work, and is through with some keys: nothing is kept of them any more.
-- KEYS: savepoint, names of kept keys, job; then the kept hashes; then pairs: kept inbox, meta of its partition
-- ARGV: token, milliseconds of its lease, number of hashes
-- Returns {1}, {-1} it is another one's by now, or let go, {-2, why} it was given up
-- The first write is an HDEL, which a Redis without memory lets through.
local record, names, hashes = KEYS[1], KEYS[2], tonumber(ARGV[3])
local key = foreign({record, 'hash', names, 'set'})
for i = 4, 3 + hashes do key = key or foreign({KEYS[i], 'hash'}) end
for i = 4 + hashes, #KEYS, 2 do key = key or foreign({KEYS[i], 'stream', KEYS[i + 1], 'hash'}) end
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local s = call('HMGET', record, 'token', 'given_up')
if s[1] ~= ARGV[1] then return {-1} end
if s[2] then return {-2, s[2]} end
if not call('HGET', KEYS[3], 'epoch') then return {-1} end
local bytes = 0
for i = 4, 3 + hashes do bytes = bytes + (tonumber(call('HGET', KEYS[i], '') or 0) or 0) end
for i = 4 + hashes, #KEYS, 2 do bytes = bytes + tonumber(call('HGET', record, KEYS[i]) or 0) end
local time = call('TIME')
call('HDEL', record, 'until')
for i = 4, 3 + hashes do
  call('UNLINK', KEYS[i])
  call('HSET', KEYS[i], '', 'x')
  call('SADD', names, KEYS[i])
end
for i = 4 + hashes, #KEYS, 2 do
  call('UNLINK', KEYS[i])
  call('HDEL', record, KEYS[i])
  call('HDEL', KEYS[i + 1], 'mark')
end
if bytes > 0 then call('HINCRBY', record, 'bytes', -bytes) end
call('HSET', record, 'until', int(time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[2])))
return {1}
