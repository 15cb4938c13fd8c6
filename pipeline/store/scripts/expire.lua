-- Forgets a sender that is a visitor and has been silent for so long.
-- KEYS: leader, visitors, senders, log    ARGV: leader token, visitor, sender name, id, milliseconds
-- Returns {1} forgotten, {0} heard of since, or gone already, {-1} no longer the leader
if not leads(KEYS[1], ARGV[1]) then return {-1} end
local time = call('TIME')
local before = time[1] * 1000 + math.floor(time[2] / 1000) - tonumber(ARGV[5])
local heard = call('ZSCORE', KEYS[2], ARGV[2])
if not heard or tonumber(heard) > before then return {0} end
local id = ARGV[4]
local last = call('HGET', KEYS[4], id)
local found = uncountable(KEYS[4], id, 'gone')
if found then return refusal(found) end
call('ZREM', KEYS[2], ARGV[2])
call('HDEL', KEYS[3], 'n:' .. ARGV[3])
call('HDEL', KEYS[4], id, 'e:' .. id, 'n:' .. id, 'w:' .. id, 'p:' .. id)
call('HINCRBY', KEYS[4], 'gone', last or '0')
return {1}
