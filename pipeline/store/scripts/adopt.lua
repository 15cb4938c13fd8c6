-- The job goes on on another run of the server: ends every ownership and lease of the one before, in one step.
-- KEYS: leader, job, assignment, control, then the meta of each partition, then of each output
-- ARGV: leader token, number of partitions
-- Returns {1}, {0} it was adopted before, {-1} no longer the leader
local metas, outs = {}, {}
for i = 5, #KEYS do
  if i <= 4 + tonumber(ARGV[2]) then metas[#metas + 1] = KEYS[i] else outs[#outs + 1] = KEYS[i] end
end
if not leads(KEYS[1], ARGV[1]) then return {-1} end
local j = call('HMGET', KEYS[2], 'run_id', 'made_at')
if j[1] == server then return {0} end
if foreign({KEYS[4], 'stream'}) then return redis.error_reply('WRONGTYPE ' .. KEYS[4]) end
local time = now(KEYS[2])
end_ownerships(metas, outs, KEYS[3], time - tonumber(j[2]))
call('HSET', KEYS[2], 'run_id', server)
call('XADD', KEYS[4], 'MAXLEN', '~', 1000, '*', 'kind', 'Adopt')
return {1}
