-- Takes away the dead letter that holds a key, and puts what lets the key go into the inbox in which it failed: both or
-- nothing. What is behind the letter counts as held no more. Control, so a full inbox takes it.
-- KEYS: job, dead letters, edits, inbox, meta, held keys of the key group, then the meta of each entry partition that
--   feeds it
-- ARGV: letter id, payload where it was not edited, field of the key, 'true' if the letter's record runs, 'false' if it is dropped,
--   version of the table that the inbox was chosen by
-- Returns {1}, {-1} no such letter, {-2} the table is another by now, {-3, records held} its input has ended, {-4} the server was restarted just now,
--   {-5} no such job, {-9} a shadow runs beside the job
-- The first write is an XDEL, which a Redis without memory lets through. When all is done, a letter that holds nothing
-- back can still be dropped.
local h = call('HMGET', KEYS[1], 'state', 'run_id', 'table', 'shadow')
local j = h[1]
if not j then return {-5} end
if h[4] then return {-9} end
if #call('XRANGE', KEYS[2], ARGV[1], ARGV[1]) == 0 then return {-1} end
if h[3] ~= ARGV[5] then return {-2} end
local key = foreign({KEYS[6], 'hash', KEYS[3], 'hash', KEYS[4], 'stream', call('HGET', KEYS[5], 'queue'), 'list'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local found = unfit(KEYS[4], KEYS[5]) or uncountable(KEYS[1], 'dropped')
if found then return refusal(found) end
local m = call('HMGET', KEYS[5], 'held', 'held_bytes', 'done')
local records, bytes = string.match(call('HGET', KEYS[6], ARGV[3]) or '0 0', '^(%d+) (%d+)')
local payload = call('HGET', KEYS[3], ARGV[1]) or ARGV[2]
local left, left_bytes = tonumber(m[1] or 0) - tonumber(records), tonumber(m[2] or 0) - tonumber(bytes)
local is_open = false
for i = 7, #KEYS do is_open = is_open or not call('HGET', KEYS[i], 'closed') end
if j == 'finished' or j == 'publishing' or not is_open then
  if ARGV[4] == 'true' or records ~= '0' or not m[3] then return {-3, records} end
  call('XDEL', KEYS[2], ARGV[1])
  call('HDEL', KEYS[3], ARGV[1])
  call('HDEL', KEYS[6], ARGV[3])
  call('HINCRBY', KEYS[1], 'dropped', 1)
  return {1}
end
if h[2] ~= server then return {-4} end

call('XDEL', KEYS[2], ARGV[1])
call('HDEL', KEYS[3], ARGV[1])
put(KEYS[4], KEYS[5], '["R","' .. ARGV[1] .. '",' .. ARGV[4] .. ',' .. records .. ',' .. bytes .. ']', payload, 0)
call('HSET', KEYS[5], 'held', int(left), 'held_bytes', int(left_bytes))
call('HINCRBY', KEYS[1], 'dropped', 1)
ring(KEYS[5])
return {1}
