-- The cut of a savepoint: any instant of one Redis is consistent, so it is this one. Small keys are copied, each inbox is
-- marked where it ends, and the epoch is opened: from here on commits keep what they change (see commit.lua).
-- KEYS: job, savepoint, names of kept keys, control; then the metas of the partitions; then pairs: key, its copy
-- ARGV: token, name, milliseconds of the exporter's lease, most bytes that commits may keep, number of partitions,
--   reason, or '': with one the job enters the state that comes next, at this instant; `suspended` wants nothing in
--   flight; version of the table that the keys are for, or '' for whichever; token of the shadow that begins here, or '':
--   from here on the shadow gets what senders append; then the type of each key that is copied
-- Returns {1, epoch, milliseconds of the server}, {-1, name, milliseconds until its exporter counts as gone} another one
--   is being written, {-3, state} the job cannot be ended so any more, {-4} the table is another by now, {-5} no such job,
--   {-8} it is being restored, {-9} it was to be suspended, and something is in flight,
--   {-10, what it is, its phase, milliseconds since it began} a lifecycle operation is under way
-- The first write is a COPY, so a Redis without memory refuses the whole script.
local job, record, names, control = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local j = call('HMGET', job, 'state', 'saving', 'epochs', 'cut_at', 'restoring', 'table')
if not j[1] then return {-5} end
if j[5] then return {-8} end
local key = foreign({record, 'hash', names, 'set', control, 'stream', string.sub(job, 1, -5) .. ':operation', 'hash'})
local count = tonumber(ARGV[5])
for i = 5, 4 + count do key = key or foreign({KEYS[i], 'hash'}) end
for i = 5 + count, #KEYS, 2 do key = key or foreign({KEYS[i], ARGV[10 + (i - 5 - count) / 2]}) end
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local time = call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
if j[2] then
  local s = call('HMGET', record, 'name', 'until')
  return {-1, s[1] or '', math.max(0, tonumber(s[2] or 0) - ms)}
end
local operation = string.sub(job, 1, -5) .. ':operation'
local found = uncountable(job, 'now', 'ahead')
if found then return refusal(found) end
local other, is_gone, strange = under_way(job, operation)
if strange then return refusal(strange) end
local is_shadow = ARGV[9] ~= '' and call('HGET', operation, 'token') == ARGV[9] and (call('HGET', job, 'shadow') or '')
is_shadow = is_shadow and string.match(is_shadow, '^%S*') == ARGV[9]
if other and not is_shadow then return {-10, unpack(other)} end
if ARGV[9] ~= '' and not is_shadow then return {-3, 'without this shadow'} end
if ARGV[8] ~= '' and j[6] ~= ARGV[8] then return {-4} end
local suspends = ARGV[7] == 'suspended'
if ARGV[6] ~= '' and j[1] ~= 'running' and (suspends or j[1] ~= 'draining') then return {-3, j[1]} end
local at = math.max(ms, tonumber(j[4] or 0))
local epoch = int(tonumber(j[3] or 0) + 1)
local marks = {}
for i = 5, 4 + count do
  local m = call('HMGET', KEYS[i], 'head', 'sub', 'pos')
  marks[i] = int(tonumber(m[1] or 0) + 1) .. '-' .. (m[2] or '0')
  if suspends and m[3] ~= marks[i] then return {-9} end
end

for i = 5 + count, #KEYS, 2 do
  if call('COPY', KEYS[i], KEYS[i + 1], 'REPLACE') == 1 then call('SADD', names, KEYS[i + 1]) end
end
for i = 5, 4 + count do call('HSET', KEYS[i], 'mark', marks[i]) end
call('HSET', record, 'epoch', epoch, 'token', ARGV[1], 'name', ARGV[2], 'until', int(ms + tonumber(ARGV[3])),
  'cut_at', int(at), 'bytes', '0', 'limit', ARGV[4])
if is_shadow then call('HSET', job, 'tee', '1') end
call('HSET', job, 'epoch', epoch, 'saving', epoch, 'epochs', epoch, 'cut_at', int(at))
if ARGV[6] ~= '' then
  enter(job, ARGV[7], ARGV[6])
  call('XADD', control, 'MAXLEN', '~', 1000, '*', 'kind', 'State', 'state', ARGV[7])
end
if is_gone and not is_shadow then end_operation(job, operation, GONE) end
return {1, tonumber(epoch), at}
