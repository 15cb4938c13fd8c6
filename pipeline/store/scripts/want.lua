-- Asks the command of a shadow for something.
-- KEYS: job, operation, shadow    ARGV: what is wanted, and by it, in its words
-- Returns {1, token}, {0, token} its command is gone, {-1} there is no shadow, {-5} no such job
-- The first write is an HDEL, which a Redis without memory lets through.
local job = KEYS[1]
local j = call('HMGET', job, 'state', 'shadow')
if not j[1] then return {-5} end
local key = foreign({KEYS[2], 'hash', KEYS[3], 'hash'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
if not j[2] then return {-1} end
local token = string.match(j[2], '^%S*')
local o = call('HMGET', KEYS[2], 'token', 'until')
local found = no_number(KEYS[2], {'until'}, {o[2]}) or uncountable(job, 'now', 'ahead')
if found then return refusal(found) end
if o[1] ~= token or tonumber(o[2] or 0) < now(job) then return {0, token} end
call('HDEL', KEYS[3], 'answer')
call('HSET', KEYS[3], 'want', ARGV[1])
return {1, token}
