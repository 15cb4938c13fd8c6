-- Opens or closes the job to external appends.
-- KEYS: leader, job    ARGV: leader token, open or closed
-- Returns {1}, {-1} no longer the leader
if not leads(KEYS[1], ARGV[1]) then return {-1} end
call('HDEL', KEYS[2], 'gate')
call('HSET', KEYS[2], 'gate', ARGV[2])
return {1}
