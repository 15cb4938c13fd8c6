-- The owner of a partition that it was asked for gives it to the one that the leader means, so that this one starts at
-- once. It has no record in hand, and what it has not committed is nothing.
-- KEYS: meta, assignment, control, queue, job, moving, workers
-- ARGV: token, `stage.partition`, ticket of the next term, milliseconds since the owner's last slice there
-- Returns {1, the new owner's token} given away, {0} nobody asks for it, {2} the one that was meant is gone, so the owner keeps it, {-1} fenced,
--   {-5} the job does not run, {-6} this run of the server is not adopted yet
-- The first write is an HDEL, which a Redis without memory lets through.
local meta, moving, place = KEYS[1], KEYS[6], ARGV[2]
local j = call('HMGET', KEYS[5], 'state', 'run_id')
if j[1] ~= 'running' and j[1] ~= 'draining' then return {-5} end
if j[2] ~= server then return {-6} end
local m = call('HMGET', meta, 'token', 'term')
if m[1] ~= ARGV[1] then return {-1} end
local key = foreign({KEYS[2], 'hash', KEYS[3], 'stream', moving, 'hash', KEYS[7], 'hash'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local token, worker, incarnation, nonce, asked, why =
  string.match(call('HGET', moving, place) or '', '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|(%d+)|(.*)$')
if token ~= ARGV[1] or asked == '0' then return {0} end
local w = call('HMGET', KEYS[7], 'i:' .. worker, 'd:' .. worker)
if w[1] ~= incarnation or w[2] == incarnation then
  call('HDEL', moving, place)
  return {2}
end
local term = int(tonumber(m[2]) + 1)
local since = math.max(tonumber(asked), now(KEYS[5]) - tonumber(ARGV[4]))

hand_over(meta, KEYS[2], KEYS[3], KEYS[4], moving, {place = place, worker = worker, incarnation = incarnation, term = term,
  token = term .. ':' .. nonce, ticket = ARGV[3], why = why, how = 'collected', since = since, by = ARGV[1]})
return {1, term .. ':' .. nonce}
