-- A run takes a job, to start workers for it, or says that it still does.
-- KEYS: job    ARGV: the claim that it saw, or '', its nonce
-- Returns {1, its claim}, {0} another run was faster, {-5} no such job
if call('EXISTS', KEYS[1]) == 0 then return {-5} end
if (call('HGET', KEYS[1], 'claim') or '') ~= ARGV[1] then return {0} end
local claim = int(now(KEYS[1])) .. ' ' .. ARGV[2]
call('HDEL', KEYS[1], 'claim')
call('HSET', KEYS[1], 'claim', claim)
return {1, claim}
