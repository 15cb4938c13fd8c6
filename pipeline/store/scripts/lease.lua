-- Takes or renews the lease of the job's leader; each change of hands is a new term. A lease that was taken on another run
-- of the server is nobody's: a cut append-only file may have brought it back.
-- KEYS: leader, job    ARGV: leader name, nonce, lease in ms
-- Returns {1, token, 1 if newly taken}, {0, name of the holder}, or {-5} no such job
if call('EXISTS', KEYS[2]) == 0 then return {-5} end
local h = call('HMGET', KEYS[1], 'token', 'until', 'term', 'name', 'server')
local time, ahead = now(KEYS[2])
local term = tonumber(h[3] or 0)
local is_old = h[5] ~= server
local mine = not is_old and h[1] == int(term) .. ':' .. ARGV[2] and h[4] == ARGV[1]
-- Also by whoever is refused: when all that served the job are dead, the clock goes on by those who wait.
keep_time(KEYS[2], time, ahead)
if not mine and not is_old and h[2] and time < tonumber(h[2]) then return {0, h[4]} end
if not mine then term = term + 1 end
call('HDEL', KEYS[1], 'until')
call('HSET', KEYS[1], 'name', ARGV[1], 'token', int(term) .. ':' .. ARGV[2], 'term', int(term),
  'until', int(time + tonumber(ARGV[3])), 'server', server)
return {1, int(term) .. ':' .. ARGV[2], mine and 0 or 1}
