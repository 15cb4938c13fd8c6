-- Lets the sources go on that were held back for a backfill.
-- KEYS: job, operation, then the metas of their entry partitions
-- ARGV: what the job says that is held back, `own` by the command itself or `gone` by somebody else: only when that is gone,
--   then the sources
-- Returns {1}, {0} something else, or nothing, is held back by now, or its command is at work, {-5} no such job
-- The first write is an HDEL, which a Redis without memory lets through.
local job, operation = KEYS[1], KEYS[2]
local wanted = {operation, 'hash'}
for i = 3, #KEYS do wanted[#wanted + 1], wanted[#wanted + 2] = KEYS[i], 'hash' end
local key = foreign(wanted)
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local j = call('HMGET', job, 'state', 'held_back')
if not j[1] then return {-5} end
local o = call('HMGET', operation, 'token', 'until')
local found = no_number(operation, {'until'}, {o[2]}) or uncountable(job, 'now', 'ahead')
if found then return refusal(found) end
if j[2] ~= ARGV[1] then return {0} end
local is_held = o[1] == string.match(ARGV[1], '^[^\n]*')
if ARGV[2] ~= 'own' and is_held and tonumber(o[2] or 0) >= now(job) then return {0} end

call('HDEL', job, 'held_back')
for i = 3, #ARGV do call('HDEL', job, 'paused:' .. ARGV[i]) end
for i = 3, #KEYS do call('HDEL', KEYS[i], 'paused') end
return {1}
