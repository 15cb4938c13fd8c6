-- The job goes on on another run of the server: ends every ownership and lease of the one before, in one step.
-- KEYS: leader, job, assignment, control, then the meta of each partition    ARGV: leader token
-- Returns {1}, {0} it was adopted before, {-1} no longer the leader
local metas = {unpack(KEYS, 5)}
if not leads(KEYS[1], ARGV[1]) then return {-1} end
local j = call('HMGET', KEYS[2], 'run_id', 'made_at')
if j[1] == server then return {0} end
if foreign({KEYS[4], 'stream'}) then return redis.error_reply('WRONGTYPE ' .. KEYS[4]) end
local time = now(KEYS[1])
end_ownerships(metas, KEYS[3], time - tonumber(j[2]))
call('HSET', KEYS[2], 'run_id', server)
call('XADD', KEYS[4], 'MAXLEN', '~', 1000, '*', 'kind', 'Adopt')
return {1}
