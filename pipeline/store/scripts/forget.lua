-- Takes a worker that is long dead, and owns nothing, out of the registry.
-- KEYS: workers, leader    ARGV: leader token, worker, incarnation
-- Returns {1}, {0} it is another incarnation by now, {-1} no longer the leader
if not leads(KEYS[2], ARGV[1]) then return {-1} end
if call('HGET', KEYS[1], 'i:' .. ARGV[2]) ~= ARGV[3] then return {0} end
call('HDEL', KEYS[1], 'i:' .. ARGV[2], 'a:' .. ARGV[2], 'r:' .. ARGV[2], 'd:' .. ARGV[2], 'l:' .. ARGV[2])
return {1}
