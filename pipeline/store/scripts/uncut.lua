-- Lets a savepoint go: it is written, or given up, or its exporter is gone. Nothing is kept for it any more.
-- KEYS: job, savepoint, names of kept keys, then the metas of the partitions    ARGV: token of its exporter, or '' for whoever tidies up
-- Returns {1}, {0} there is none, {-1} its exporter is at work
-- The first write is an HDEL, which a Redis without memory lets through.
local job, record, names = KEYS[1], KEYS[2], KEYS[3]
local key = foreign({job, 'hash', record, 'hash', names, 'set'})
for i = 4, #KEYS do key = key or foreign({KEYS[i], 'hash'}) end
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local s = call('HMGET', record, 'token', 'until')
if not s[1] and not call('HGET', job, 'saving') then return {0} end
local time = call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
if s[1] and s[1] ~= ARGV[1] and ms <= tonumber(s[2] or 0) then return {-1} end
call('HDEL', job, 'epoch', 'saving')
for i = 4, #KEYS do call('HDEL', KEYS[i], 'mark') end
for _, each in ipairs(call('SMEMBERS', names)) do call('UNLINK', each) end
call('DEL', names, record)
return {1}
