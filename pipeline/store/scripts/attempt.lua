-- Notes that a record failed once more, for whoever owns its partition next.
-- KEYS: meta    ARGV: token, position text, lines of the attempts before, text of this one
-- Returns {1}, or {-1} fenced
if call('HGET', KEYS[1], 'token') ~= ARGV[1] then return {-1} end
call('HDEL', KEYS[1], 'tried')
local time = call('TIME')
local line = int(time[1] * 1000 + math.floor(time[2] / 1000)) .. ' ' .. ARGV[4]
call('HSET', KEYS[1], 'tried_at', ARGV[2], 'tried', ARGV[3] == '' and line or ARGV[3] .. '\n' .. line)
return {1}
