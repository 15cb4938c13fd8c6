-- Begins the removal of a job, or takes over one that was interrupted: from here on every late writer is refused.
-- KEYS: job, leader, removing, queue of the job's own leader, leaders    ARGV: name of that leader
-- Returns {number of this removal, keys deleted}
local gone = call('DEL', KEYS[1], KEYS[2], KEYS[4])
call('ZREM', KEYS[5], ARGV[1])
return {call('INCR', KEYS[3]), gone}
