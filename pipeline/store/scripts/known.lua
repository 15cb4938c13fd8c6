-- What the job has of a sender that has registered before, perhaps on another run of the server. Changes nothing.
-- KEYS: senders, job, log of its entry partition    ARGV: sender name without its generation, id
-- Returns {1, made_at, generation, last number, epoch} (last is -1 when the sender is not known), {-5} no such job
local j = call('HMGET', KEYS[2], 'made_at', 'generation')
if not j[1] then return {-5} end
local entry = call('HGET', KEYS[1], 'n:' .. j[2] .. '/' .. ARGV[1])
local log = call('HMGET', KEYS[3], ARGV[2], 'e:' .. ARGV[2])
if not entry or string.match(entry, '^%d+') ~= ARGV[2] or not log[1] then return {1, j[1], j[2], -1, 0} end
return {1, j[1], j[2], tonumber(log[1]), tonumber(log[2] or 0)}
