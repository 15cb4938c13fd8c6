-- Puts other state, and other timers, in the place of those of some keys of a stage: all of it or nothing. Only where the
-- stage, and each in front of it, has processed just what it had when the new state was computed, and nothing came since.
-- Owners get the partitions of these keys anew, under the next term: what they remember is worth nothing.
-- KEYS: job, operation, assignment, control, moving; then the metas that must stand, those of the stage first; then for each
--   partition whose owner is to read anew its meta and queue; then the hashes and sorted sets
-- ARGV: token of the operation, version of the table, number of metas, of those of the stage, number of partitions that are
--   read anew; then for each meta where its inbox ended; then for each partition: `stage.partition`, the owner's token or '', nonce, ticket of the next term; then
--   for each hash or sorted set: h or z, n, n names that go, m, m pairs that come (name and value, or score and name)
-- Returns {1}, {0} something is in flight, or has come, or an owner is another by now, {-1} the operation is another's,
--   {-3, state} the job does not run, {-4} the table is another by now, {-5} no such job, {-6} the server was restarted just now,
--   {-7} the input of the stage has ended, {-8} a savepoint is being written
-- The first write is an HSET, so a Redis without memory refuses the whole script.
local job, operation = KEYS[1], KEYS[2]
local metas, own, partitions = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local j = call('HMGET', job, 'state', 'table', 'run_id', 'saving')
if not j[1] then return {-5} end
local wanted = {operation, 'hash', KEYS[3], 'hash', KEYS[4], 'stream', KEYS[5], 'hash'}
for i = 6, 5 + metas do wanted[#wanted + 1], wanted[#wanted + 2] = KEYS[i], 'hash' end
local key = foreign(wanted)
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local found = uncountable(job, 'now', 'ahead')
if found then return refusal(found) end
if call('HGET', operation, 'token') ~= ARGV[1] then return {-1} end
if j[1] ~= 'running' then return {-3, j[1]} end
if j[2] ~= ARGV[2] then return {-4} end
if j[3] ~= server then return {-6} end
-- Commits would keep no old value of what is changed here.
if j[4] then return {-8} end
for i = 1, metas do
  local m = call('HMGET', KEYS[5 + i], 'head', 'sub', 'pos', 'rec', 'done', 'switch')
  found = no_number(KEYS[5 + i], {'head', 'sub', 'rec'}, {m[1], m[2], m[4]})
  if found then return refusal(found) end
  if m[5] and i <= own then return {-7} end
  local last = int(tonumber(m[1] or 0) + 1) .. '-' .. (m[2] or '0')
  if m[6] or last ~= ARGV[5 + i] or (m[3] or '1-0') ~= last or tonumber(m[4] or 0) ~= 0 then return {0} end
end
local owners, at, first = {}, 6 + metas, 6 + metas
for i = 1, partitions do
  local meta, queue, place, token = KEYS[first + 2 * i - 2], KEYS[first + 2 * i - 1], ARGV[at], ARGV[at + 1]
  local m = call('HMGET', meta, 'token', 'term')
  found = no_number(meta, {'term'}, {m[2]})
  if found then return refusal(found) end
  if (m[1] or '') ~= token then return {0} end
  if token ~= '' then
    local worker, incarnation, its = string.match(call('HGET', KEYS[3], place) or '', '^([^|]*)|([^|]*)|(.*)$')
    if its ~= token then return {0} end
    local term = int(tonumber(m[2]) + 1)
    owners[#owners + 1] = {meta = meta, queue = queue, to = {place = place, worker = worker, incarnation = incarnation,
      term = term, token = term .. ':' .. ARGV[at + 2], ticket = ARGV[at + 3], why = '', how = '', since = 0, by = ''}}
  end
  at = at + 4
end
first = first + 2 * partitions
local changes = {}
for i = first, #KEYS do
  local kind, n = ARGV[at], tonumber(ARGV[at + 1])
  local m = tonumber(ARGV[at + 2 + n])
  if foreign({KEYS[i], kind == 'h' and 'hash' or 'zset'}) then return redis.error_reply('WRONGTYPE ' .. KEYS[i]) end
  changes[#changes + 1] = {key = KEYS[i], kind = kind, gone = {at + 2, at + 1 + n}, come = {at + 3 + n, at + 2 + n + 2 * m}}
  at = at + 3 + n + 2 * m
end

call('HSET', operation, 'switched_at', int(now(job)))
local function send(command, name, from, to)
  for i = from, to, 4000 do call(command, name, unpack(ARGV, i, math.min(i + 3999, to))) end
end
for _, each in ipairs(changes) do
  send(each.kind == 'h' and 'HDEL' or 'ZREM', each.key, each.gone[1], each.gone[2])
  send(each.kind == 'h' and 'HSET' or 'ZADD', each.key, each.come[1], each.come[2])
end
for _, each in ipairs(owners) do hand_over(each.meta, KEYS[3], KEYS[4], each.queue, KEYS[5], each.to) end
return {1}
