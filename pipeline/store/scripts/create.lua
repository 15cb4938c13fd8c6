-- Registers a job with its partitions. Nothing is changed if it exists.
-- KEYS: job, jobs, control, removing, then the meta of each partition
-- ARGV: job id, plan, server run id, '' or, for one that is filled from a savepoint, `nonce name` of who does that
-- Returns {1} created, {0, state} exists, {2} a job of this id is being removed
local state = call('HGET', KEYS[1], 'state')
if state then return {0, state} end
if call('EXISTS', KEYS[4]) == 1 then return {2} end
local wanted = {KEYS[2], 'zset', KEYS[3], 'stream'}
for i = 5, #KEYS do
  wanted[#wanted + 1], wanted[#wanted + 2] = KEYS[i], 'hash'
end
local key = foreign(wanted)
if key then return redis.error_reply('WRONGTYPE ' .. key) end
now(KEYS[1])  -- stops here where somebody has bent the clock
local is_whole = ARGV[4] == ''
call('HSET', KEYS[1], 'plan', ARGV[2], 'generation', '0', 'table', '1', 'run_id', ARGV[3], 'gate', 'open')
if not is_whole then call('HSET', KEYS[1], 'restoring', ARGV[4]) end
local made = enter(KEYS[1], is_whole and 'running' or 'cancelled', is_whole and '' or 'it is being restored')
call('HSET', KEYS[1], 'made_at', made)
call('ZADD', KEYS[2], made, ARGV[1])
for i = 5, #KEYS do call('HSET', KEYS[i], 'pos', '1-0', 'rec', '0', 'head', '0', 'sub', '0', 'bytes', '0', 'term', '0') end
call('XADD', KEYS[3], 'MAXLEN', '~', 1000, '*', 'kind', 'Created')
return {1}
