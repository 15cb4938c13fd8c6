-- A run takes a job, to start workers for it, or says that it still does.
-- KEYS: job    ARGV: the claim that it saw, or '', its nonce: with that of the claim that there is, it is its own, also
--   when it has not heard of that
-- Returns {1, its claim}, {0} another run was faster, {-5} no such job
if call('EXISTS', KEYS[1]) == 0 then return {-5} end
local held = call('HGET', KEYS[1], 'claim') or ''
if held ~= ARGV[1] and string.match(held, ' (.*)$') ~= ARGV[2] then return {0} end
local claim = int(now(KEYS[1])) .. ' ' .. ARGV[2]
call('HDEL', KEYS[1], 'claim')
call('HSET', KEYS[1], 'claim', claim)
return {1, claim}
