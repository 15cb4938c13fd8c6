-- The node agent saw this incarnation end.
-- KEYS: workers, job    ARGV: worker, incarnation
-- Returns {1}, {0} another incarnation is registered, {-5} no such job
if call('EXISTS', KEYS[2]) == 0 then return {-5} end
if call('HGET', KEYS[1], 'i:' .. ARGV[1]) ~= ARGV[2] then return {0} end
call('HDEL', KEYS[1], 'd:' .. ARGV[1])
call('HSET', KEYS[1], 'd:' .. ARGV[1], ARGV[2])
return {1}
