-- Puts something into a job that is being restored.
-- KEYS: job, the key    ARGV: nonce of who restores it, HSET, ZADD or XADD, then pairs; for XADD: id, n, n values, id, ...
-- Returns {1}, {-1} somebody else restores it, or it is restored, or gone
local r = call('HGET', KEYS[1], 'restoring')
if not r or string.match(r, '^%S+') ~= ARGV[1] then return {-1} end
local key = foreign({KEYS[2], ({HSET = 'hash', ZADD = 'zset', XADD = 'stream'})[ARGV[2]]})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
if ARGV[2] ~= 'XADD' then
  for i = 3, #ARGV, 4000 do call(ARGV[2], KEYS[2], unpack(ARGV, i, math.min(i + 3999, #ARGV))) end
  return {1}
end
local last = call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local i = 3
while i <= #ARGV do
  local n = tonumber(ARGV[i + 1])
  -- A call whose reply was lost is made again: what is there is left as it is.
  if not last or before(last[1], ARGV[i]) then call('XADD', KEYS[2], ARGV[i], unpack(ARGV, i + 2, i + 1 + n)) end
  i = i + 2 + n
end
return {1}
