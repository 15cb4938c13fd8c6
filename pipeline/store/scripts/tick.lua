-- Queues a leader's tick, at most one. The deletion of what is not there lets a Redis without memory take the push.
-- KEYS: queue    ARGV: message
-- Returns {1} queued, {0} one is queued already
if call('EXISTS', KEYS[1]) == 1 then return {0} end
call('DEL', KEYS[1])
call('LPUSH', KEYS[1], ARGV[1])
return {1}
