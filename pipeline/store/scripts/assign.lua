-- Gives one partition to a worker under a new term, and rings, so that the new owner works at once.
-- KEYS: leader, assignment, control, meta, queue, job
-- ARGV: leader token, `stage.partition`, worker, incarnation, term, nonce, ticket, '1' after an unclean end
-- Returns {1}, {0} the term is not the next one, {-1} no longer the leader, {-5} the job does not run
local meta = KEYS[4]
local state = call('HGET', KEYS[6], 'state')
if state ~= 'running' and state ~= 'draining' then return {-5} end
if not leads(KEYS[1], ARGV[1]) then return {-1} end
local m = call('HMGET', meta, 'term', 'pos', 'rec', 'deaths', 'deaths_at', 'trying')
if tonumber(m[1] or 0) + 1 ~= tonumber(ARGV[5]) then return {0} end
local token = ARGV[5] .. ':' .. ARGV[6]
local position = m[2] .. '/' .. m[3]
local deaths = m[5] == position and tonumber(m[4]) or 0
-- From the second death on records run singly and say so first: only a record that was in hand then counts. One such
-- death alone proves nothing against it: whoever kills workers from outside hits it by chance.
if ARGV[8] == '1' then
  if m[6] == position then deaths = math.max(deaths + 1, 2) elseif deaths < 2 then deaths = deaths + 1 end
end
local key = foreign({KEYS[2], 'hash', KEYS[3], 'stream'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
call('HDEL', meta, 'ring', 'trying')
call('DEL', KEYS[5])
call('HSET', meta, 'term', ARGV[5], 'token', token, 'owner', ARGV[3], 'queue', KEYS[5], 'ticket', ARGV[7],
  'deaths', int(deaths), 'deaths_at', position)
call('HSET', KEYS[2], ARGV[2], ARGV[3] .. '|' .. ARGV[4] .. '|' .. token)
ring(meta)
call('XADD', KEYS[3], 'MAXLEN', '~', 1000, '*', 'kind', 'Assign', 'partition', ARGV[2], 'worker', ARGV[3], 'term', ARGV[5],
  'leader', ARGV[1])
return {1}
