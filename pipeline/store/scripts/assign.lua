-- Gives one partition to a worker under a new term, and rings, so that the new owner works at once.
-- KEYS: leader, assignment, control, meta, queue, job, moving
-- ARGV: leader token, `stage.partition`, worker, incarnation, term, nonce, ticket, '1' after an unclean end, why it moves, or
--   '', milliseconds for which it has stood still
-- Returns {1}, {0} the term is not the next one, {-1} no longer the leader, {-5} the job does not run
local meta = KEYS[4]
local state = call('HGET', KEYS[6], 'state')
if state ~= 'running' and state ~= 'draining' then return {-5} end
if not leads(KEYS[1], ARGV[1]) then return {-1} end
local m = call('HMGET', meta, 'term', 'pos', 'rec', 'deaths', 'deaths_at', 'trying')
if tonumber(m[1] or 0) + 1 ~= tonumber(ARGV[5]) then return {0} end
local position = m[2] .. '/' .. m[3]
local deaths = m[5] == position and tonumber(m[4]) or 0
-- From the second death on records run singly and say so first: only a record that was in hand then counts. One such
-- death alone proves nothing against it: whoever kills workers from outside hits it by chance.
if ARGV[8] == '1' then
  if m[6] == position then deaths = math.max(deaths + 1, 2) elseif deaths < 2 then deaths = deaths + 1 end
end
local key = foreign({KEYS[2], 'hash', KEYS[3], 'stream', KEYS[7], 'hash'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local since = now(KEYS[6]) - tonumber(ARGV[10])

hand_over(meta, KEYS[2], KEYS[3], KEYS[5], KEYS[7], {place = ARGV[2], worker = ARGV[3], incarnation = ARGV[4], term = ARGV[5],
  token = ARGV[5] .. ':' .. ARGV[6], ticket = ARGV[7], why = ARGV[9], how = 'forced', since = since, by = ARGV[1]})
call('HSET', meta, 'deaths', int(deaths), 'deaths_at', position)
return {1}
