-- The leader wants a partition to move from an owner that lives: it is planned, or asked for, or withdrawn. Asked for, the
-- owner gives it away between two slices (see collected.lua). One entry for each partition, so asking again changes nothing.
-- KEYS: leader, moving, control, meta, job
-- ARGV: leader token, `stage.partition`, the owner's token, plan, ask or drop, worker, incarnation, nonce, why
-- Returns {1}, {0} it has another owner by now, {-1} no longer the leader, {-5} the job does not run
-- The first write is an HDEL, which a Redis without memory lets through.
local moving, place, token = KEYS[2], ARGV[2], ARGV[3]
local state = call('HGET', KEYS[5], 'state')
if state ~= 'running' and state ~= 'draining' then return {-5} end
if not leads(KEYS[1], ARGV[1]) then return {-1} end
if call('HGET', KEYS[4], 'token') ~= token then return {0} end
local key = foreign({moving, 'hash', KEYS[3], 'stream'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local known = {string.match(call('HGET', moving, place) or '', '^([^|]*)|([^|]*)|([^|]*)|[^|]*|(%d+)|')}
local is_known = known[1] == token and known[2] == ARGV[5] and known[3] == ARGV[6]
if is_known and (ARGV[4] == 'plan' or (ARGV[4] == 'ask' and known[4] ~= '0')) then return {1} end
local asked = ARGV[4] == 'ask' and int(now(KEYS[5])) or '0'

call('HDEL', moving, place)
if ARGV[4] == 'drop' then return {1} end
call('HSET', moving, place, table.concat({token, ARGV[5], ARGV[6], ARGV[7], asked, ARGV[8]}, '|'))
if ARGV[4] == 'ask' then
  call('XADD', KEYS[3], 'MAXLEN', '~', 1000, '*', 'kind', 'Collect', 'partition', place, 'worker', call('HGET', KEYS[4], 'owner'),
    'term', string.match(token, '^%d+'), 'leader', ARGV[1])
end
return {1}
