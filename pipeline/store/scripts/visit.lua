-- Says that these senders, which have no name to come back under, are still there. Their leader forgets silent ones.
-- KEYS: visitors, job    ARGV: visitors
-- Returns {1}, or {-5} no such job
if call('EXISTS', KEYS[2]) == 0 then return {-5} end
local time = call('TIME')
local at = time[1] * 1000 + math.floor(time[2] / 1000)
for _, visitor in ipairs(ARGV) do call('ZADD', KEYS[1], int(at), visitor) end
return {1}
