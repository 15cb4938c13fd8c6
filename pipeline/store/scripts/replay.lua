-- Puts the record of a dead letter back into the inbox in which it failed, and takes the letter away: both or nothing.
-- KEYS: job, dead letters, edits, inbox, meta, log, then the meta of each entry partition that feeds it
-- ARGV: letter id, payload, inbox_records, inbox_bytes, version of the table that the inbox was chosen by
-- Returns {1}, {-1} no such letter, {-2} the table is another by now, {-3} its input has ended, {-4} the inbox is full, or the server was restarted just now, {-5} no such job,
--   {-9} a shadow runs beside the job
-- The first write is an XDEL, which a Redis without memory lets through.
local j = call('HMGET', KEYS[1], 'state', 'table', 'run_id', 'shadow')
if not j[1] then return {-5} end
if j[4] then return {-9} end
if #call('XRANGE', KEYS[2], ARGV[1], ARGV[1]) == 0 then return {-1} end
if j[2] ~= ARGV[5] then return {-2} end
local is_open = false
for i = 7, #KEYS do is_open = is_open or not call('HGET', KEYS[i], 'closed') end
if j[1] == 'finished' or j[1] == 'publishing' or not is_open then return {-3} end
local records, bytes = backlog(KEYS[5])
if j[3] ~= server or records >= tonumber(ARGV[3]) or bytes >= tonumber(ARGV[4]) then return {-4} end
local key = foreign({KEYS[4], 'stream', KEYS[3], 'hash', call('HGET', KEYS[5], 'queue'), 'list'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local found = unfit(KEYS[4], KEYS[5]) or uncountable(KEYS[6], 'replay') or no_number(KEYS[1], {'table'}, {j[2]})
if found then return refusal(found) end
local number = int(tonumber(call('HGET', KEYS[6], 'replay') or 0) + 1)

call('XDEL', KEYS[2], ARGV[1])
call('HDEL', KEYS[3], ARGV[1])
put(KEYS[4], KEYS[5], '["D","replay:' .. ARGV[1] .. '",' .. number .. ',1,null,' .. j[2] .. ',[]]', ARGV[2], 1)
call('HSET', KEYS[6], 'replay', number)
ring(KEYS[5])
return {1}
