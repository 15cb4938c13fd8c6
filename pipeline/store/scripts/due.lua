-- The first due timers of each index.
-- KEYS: timer indices    ARGV: watermark, limit for each
-- Returns for each key a list of member, score, member, score, ...
local found = {}
for i, key in ipairs(KEYS) do
  found[i] = call('ZRANGEBYSCORE', key, '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', 0, ARGV[2])
end
return found
