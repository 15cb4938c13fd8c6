-- Notes which sources are held back to promote a shadow, so that whoever takes it away lets them go on.
-- KEYS: shadow    ARGV: token, names with a newline between
-- Returns {1}, {-1} the shadow was taken away
-- The first write is an HDEL, which a Redis without memory lets through.
if call('HGET', KEYS[1], 'token') ~= ARGV[1] then return {-1} end
call('HDEL', KEYS[1], 'held')
if ARGV[2] ~= '' then call('HSET', KEYS[1], 'held', ARGV[2]) end
return {1}
