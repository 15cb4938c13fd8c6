-- Deletes keys of a job that is being removed, or takes members out of a set that jobs share.
-- KEYS: removing, then the keys, or the set    ARGV: number of the removal, then the members
-- Returns {how many}, or {-1} another process has taken the removal over, or has finished it
if call('GET', KEYS[1]) ~= ARGV[1] then return {-1} end
if #ARGV > 1 then return {call('SREM', KEYS[2], unpack(ARGV, 2))} end
return {call('UNLINK', unpack(KEYS, 2))}
