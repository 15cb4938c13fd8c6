-- Before a single record of a position that has killed workers is run: says so, so that a further death counts.
-- KEYS: meta    ARGV: token, position text
-- Returns {1}, or {-1} fenced
if call('HGET', KEYS[1], 'token') ~= ARGV[1] then return {-1} end
call('HDEL', KEYS[1], 'trying')
call('HSET', KEYS[1], 'trying', ARGV[2])
return {1}
