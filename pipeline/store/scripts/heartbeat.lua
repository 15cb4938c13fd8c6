-- A worker says that it lives, and what it does.
-- KEYS: workers, job, control    ARGV: worker, incarnation, report
-- Returns {1, job state, last control id}, {-1} a newer incarnation has this name, {-5} no such job
-- Incarnations compare by their number before the first dash.
local state = call('HGET', KEYS[2], 'state')
if not state then return {-5} end
local known = call('HGET', KEYS[1], 'i:' .. ARGV[1])
local function number(text) return tonumber(string.match(text, '^(%d+)') or 0) end
if known and known ~= ARGV[2] and number(known) >= number(ARGV[2]) then return {-1} end
local time, ahead = now(KEYS[2])
call('HDEL', KEYS[1], 'd:' .. ARGV[1])
call('HSET', KEYS[1], 'i:' .. ARGV[1], ARGV[2], 'a:' .. ARGV[1], int(time), 'r:' .. ARGV[1], ARGV[3])
keep_time(KEYS[2], time, ahead)
local last = call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
return {1, state, last[1] and last[1][1] or '0-0'}
