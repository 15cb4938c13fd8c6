-- Ends the removal of a job of which nothing else is left; its id is free again.
-- KEYS: removing, jobs    ARGV: number of the removal, job id
-- Returns {1}, or {-1} another process has taken the removal over, or has finished it
if call('GET', KEYS[1]) ~= ARGV[1] then return {-1} end
call('DEL', KEYS[1])
call('ZREM', KEYS[2], ARGV[2])
return {1}
