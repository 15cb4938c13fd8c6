-- Deletes dead letters, and counts them.
-- KEYS: dead letters, edits, job    ARGV: letter ids, at most 4,000
-- Returns {how many there were}, {-9} a shadow runs beside the job
local key = foreign({KEYS[1], 'stream', KEYS[2], 'hash', KEYS[3], 'hash'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local found = uncountable(KEYS[3], 'dropped')
if found then return refusal(found) end
if call('HGET', KEYS[3], 'shadow') then return {-9} end
local count = call('XDEL', KEYS[1], unpack(ARGV))
call('HDEL', KEYS[2], unpack(ARGV))
if count > 0 and call('EXISTS', KEYS[3]) == 1 then call('HINCRBY', KEYS[3], 'dropped', count) end
return {count}
