-- Records the run id of the server that the job's terms belong to.
-- KEYS: leader, job    ARGV: leader token, run id
-- Returns {1}, {-1} no longer the leader
if not leads(KEYS[1], ARGV[1]) then return {-1} end
call('HDEL', KEYS[2], 'run_id')
call('HSET', KEYS[2], 'run_id', ARGV[2])
return {1}
