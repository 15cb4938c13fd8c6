-- An agent says that one incarnation of a worker is to end, or to stay after all. The leader gives its partitions away.
-- KEYS: workers, job    ARGV: worker, incarnation, '1' to end, '0' to stay
-- Returns {1}, {0} the worker has another incarnation, or was never heard of, {-5} no such job
if call('EXISTS', KEYS[2]) == 0 then return {-5} end
if call('HGET', KEYS[1], 'i:' .. ARGV[1]) ~= ARGV[2] then return {0} end
call('HDEL', KEYS[1], 'l:' .. ARGV[1])
if ARGV[3] == '1' then call('HSET', KEYS[1], 'l:' .. ARGV[1], ARGV[2]) end
return {1}
