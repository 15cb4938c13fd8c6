-- Registers a named reader of an output stream at the oldest record that is kept. Idempotent.
-- KEYS: out, meta, job    ARGV: reader
-- Returns {1, entry}, or {-5} no such job
if call('EXISTS', KEYS[3]) == 0 then return {-5} end
local at = call('HGET', KEYS[2], 'r:' .. ARGV[1])
if at then return {1, at} end
at = call('HGET', KEYS[2], 'pos') or '1-0'
call('HSET', KEYS[2], 'r:' .. ARGV[1], at, 'pos', at, 'rec', '0')
call('HINCRBY', KEYS[2], 'readers', 1)
return {1, at}
