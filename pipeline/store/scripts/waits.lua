-- A source says what it waits for, or that it waits for nothing.
-- KEYS: job    ARGV: source, text or ''
-- Returns {1}, or {-5} no such job
if call('EXISTS', KEYS[1]) == 0 then return {-5} end
call('HDEL', KEYS[1], 'waits:' .. ARGV[1])
if ARGV[2] ~= '' then call('HSET', KEYS[1], 'waits:' .. ARGV[1], ARGV[2]) end
return {1}
