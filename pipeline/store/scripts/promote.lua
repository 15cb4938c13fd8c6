-- Makes a shadow's state, timers, held keys and dead letters those of its job, under the shadow's version, where both have
-- processed exactly the same input and nothing is in flight. Its inboxes, logs, counts, senders, outputs and their readers
-- stay. Keys are renamed, not copied. No worker of another version works at the job from here on.
-- KEYS: job, operation, shadow, control, assignment, rollout, versions, the shadow's job; dead letters and edits of the job,
--   then of the shadow; then for each partition: meta and log of the job, then of the shadow
-- ARGV: token of the operation, version of the table, the plan of the shadow's version, `code target` of it, the version
--   (JSON), most versions, number of partitions, number of sources; for each partition the number of the source whose
--   entry it is, or ''; the sources: those that the operation holds back flow from here on; then pairs: what stands before
--   and behind the key group in the name of a key that is taken over
-- Returns {1, version of the table, milliseconds of the server}, {-1} the operation is another's, {-3, state} one of the jobs
--   does not run, {-4} the table is another by now, {-5} no such job, {-6} a job has not adopted the server,
--   {-8} a savepoint of one is being written, {-9} something is in flight, or they do not stand at the same place
-- What the job had goes to the shadow's job, which is erased: to free it here would take long where it is much.
-- The first write is a RENAME or DEL, which a Redis without memory lets through.
local job, operation, record, control, other = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[8]
local root, from = string.sub(job, 1, -5), string.sub(other, 1, -5)
local j = call('HMGET', job, 'state', 'table', 'run_id', 'saving', 'shadow', 'tee')
local s = call('HMGET', other, 'state', 'run_id', 'saving', 'dropped')
if not j[1] or not s[1] then return {-5} end
local wanted = {operation, 'hash', record, 'hash', control, 'stream', KEYS[5], 'hash', KEYS[6], 'hash', KEYS[7], 'list',
  KEYS[9], 'stream', KEYS[10], 'hash', KEYS[11], 'stream', KEYS[12], 'hash'}
for i = 13, #KEYS do wanted[#wanted + 1], wanted[#wanted + 2] = KEYS[i], 'hash' end
local key = foreign(wanted)
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local found = no_number(job, {'table'}, {j[2]}) or uncountable(job, 'now', 'ahead') or uncountable(other, 'now', 'ahead')
if found then return refusal(found) end
if call('HGET', operation, 'token') ~= ARGV[1] or string.match(j[5] or '', '^%S*') ~= ARGV[1] then return {-1} end
if j[1] ~= 'running' then return {-3, j[1]} end
if s[1] ~= 'running' then return {-3, s[1]} end
if j[2] ~= ARGV[2] then return {-4} end
if j[3] ~= server or s[2] ~= server then return {-6} end
if j[4] or s[3] then return {-8} end
if not j[6] then return {-9} end
local count, sources = tonumber(ARGV[7]), tonumber(ARGV[8])
local metas = {}
for i = 1, count do
  local at = 9 + 4 * i
  local m = call('HMGET', KEYS[at], 'head', 'sub', 'pos', 'rec')
  local o = call('HMGET', KEYS[at + 2], 'head', 'sub', 'pos', 'rec', 'watermark', 'letters', 'held', 'held_bytes')
  found = no_number(KEYS[at], {'head', 'sub'}, m) or no_number(KEYS[at + 2], {'head', 'sub'}, o)
  if found then return refusal(found) end
  for _, one in ipairs({m, o}) do
    if one[3] ~= int(tonumber(one[1] or 0) + 1) .. '-' .. (one[2] or '0') then return {-9} end
  end
  if ARGV[8 + i] ~= '' then
    local waiting = root .. ':tee:' .. string.match(KEYS[at], ':meta:(.+)$')
    if foreign({waiting, 'stream'}) then return redis.error_reply('WRONGTYPE ' .. waiting) end
    if m[1] ~= o[1] or m[2] ~= o[2] or call('XLEN', waiting) > 0 then return {-9} end
  end
  metas[i] = o
end
local names = {}
for i = 9 + count + sources, #ARGV, 2 do
  for group = 0, 255 do
    names[#names + 1] = ':' .. ARGV[i] .. group .. ARGV[i + 1]
  end
end
local version, ms = int(tonumber(j[2]) + 1), now(job)

for _, name in ipairs(names) do
  if call('EXISTS', root .. name) == 1 then call('RENAME', root .. name, from .. ':before' .. name) end
  if call('EXISTS', from .. name) == 1 then call('RENAME', from .. name, root .. name) end
end
for i = 9, 10 do
  if call('EXISTS', KEYS[i]) == 1 then call('RENAME', KEYS[i], from .. ':before' .. string.sub(KEYS[i], #root + 1)) end
  if call('EXISTS', KEYS[i + 2]) == 1 then call('RENAME', KEYS[i + 2], KEYS[i]) end
end
call('DEL', KEYS[5], KEYS[6])
call('HDEL', job, 'tee', 'dropped')
local flows = {}
for i = 1, sources do
  local name = 'paused:' .. ARGV[8 + count + i]
  flows[i] = string.match(call('HGET', job, name) or '', ' (.*)$') == ARGV[1]
  if flows[i] then call('HDEL', job, name) end
end
for i = 1, count do
  local at, fields = 9 + 4 * i, {}
  call('HDEL', KEYS[at], 'token', 'owner', 'trying', 'moved', 'watermark', 'letters', 'held', 'held_bytes',
    flows[tonumber(ARGV[8 + i])] and 'paused' or 'nothing')
  for n, name in ipairs({'watermark', 'letters', 'held', 'held_bytes'}) do
    if metas[i][n + 4] then fields[#fields + 1], fields[#fields + 2] = name, metas[i][n + 4] end
  end
  if #fields > 0 then call('HSET', KEYS[at], unpack(fields)) end
  local log = call('HGETALL', KEYS[at + 3])
  for n = 1, #log, 2 do
    if string.sub(log[n], 1, 2) == 'w:' then call('HSET', KEYS[at + 1], log[n], log[n + 1]) end
  end
end
call('LTRIM', KEYS[7], 0, int(tonumber(ARGV[6]) - 2))
call('LPUSH', KEYS[7], int(ms) .. ' ' .. ARGV[5])
call('HSET', KEYS[6], '*', ARGV[4])
if s[4] then call('HSET', job, 'dropped', s[4]) end
call('HSET', job, 'plan', ARGV[3], 'table', version, 'code', string.match(ARGV[4], '^%S*'))
call('HSET', record, 'promoted', int(ms))
enter(other, 'cancelled', 'promoted')
call('XADD', control, 'MAXLEN', '~', 1000, '*', 'kind', 'Table', 'table', version)
return {1, tonumber(version), ms}
