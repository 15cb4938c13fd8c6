-- Puts entries into a stream of a job that is being restored.
-- KEYS: job, the stream    ARGV: nonce of who restores it, then id, n, n values, id, ...
-- Returns {1}, {-1} somebody else restores it, or it is restored, or gone
local r = call('HGET', KEYS[1], 'restoring')
if not r or string.match(r, '^%S+') ~= ARGV[1] then return {-1} end
local key = foreign({KEYS[2], 'stream'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local last = call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local i = 2
while i <= #ARGV do
  local n = tonumber(ARGV[i + 1])
  -- A call whose reply was lost is made again: what is there is left as it is.
  if not last or before(last[1], ARGV[i]) then call('XADD', KEYS[2], ARGV[i], unpack(ARGV, i + 2, i + 1 + n)) end
  i = i + 2 + n
end
return {1}
