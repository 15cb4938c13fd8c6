-- Ends a source: closes its entry inboxes and puts EndOfInput behind all that was appended. Idempotent.
-- KEYS: leader, job, then inbox and meta of each entry partition    ARGV: leader token, source
-- Returns {1, inboxes closed now}, {-1} no longer the leader
if not leads(KEYS[1], ARGV[1]) then return {-1} end
local closed, wanted = 0, {KEYS[2], 'hash'}
for i = 3, #KEYS, 2 do
  local h = call('HMGET', KEYS[i + 1], 'closed', 'queue')
  if not h[1] then
    wanted[#wanted + 1], wanted[#wanted + 2] = KEYS[i], 'stream'
    wanted[#wanted + 1], wanted[#wanted + 2] = h[2], h[2] and 'list'
  end
end
local key = foreign(wanted)
if key then return redis.error_reply('WRONGTYPE ' .. key) end
for i = 3, #KEYS, 2 do
  key = unfit(KEYS[i], KEYS[i + 1])
  if key then return refusal(key) end
end
local shadows = {}
if call('HGET', KEYS[2], 'tee') then
  for i = 3, #KEYS, 2 do
    shadows[i], key = tee_of(KEYS[2], KEYS[i])
    if key then return refusal(key) end
  end
end
call('HDEL', KEYS[2], 'ending:' .. ARGV[2])
for i = 3, #KEYS, 2 do
  if not call('HGET', KEYS[i + 1], 'closed') then
    call('HSET', KEYS[i + 1], 'closed', '1')
    local id = put(KEYS[i], KEYS[i + 1], '["E","source"]', nil, 0)
    if shadows[i] and call('HGET', KEYS[2], 'tee') then tee(KEYS[2], shadows[i], id, '["E","source"]') end
    ring(KEYS[i + 1])
    closed = closed + 1
  end
end
return {1, closed}
