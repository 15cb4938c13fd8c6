-- Shared by all scripts: the loader puts these lines before each. Redis undoes nothing when a script fails, so every
-- script reads, decodes and checks all it needs first and then only writes what cannot fail by content.
local call = redis.call

-- Numbers as text: Lua's own conversion turns large ones into exponents.
local function int(number) return string.format('%.0f', number) end

-- Milliseconds of a job's clock, and what it adds to the server's. Where the server's is set back, the job's goes on: a
-- clock that stood still would let no lease end, and nobody be missed, for as long. `keep_time` is told both.
local function now(job)
  local time = call('TIME')
  local ms = time[1] * 1000 + math.floor(time[2] / 1000)
  local h = call('HMGET', job, 'now', 'ahead')
  local ahead = math.max(tonumber(h[2] or 0), tonumber(h[1] or 0) - ms)
  return ms + ahead, ahead
end

-- Begins with a command that shrinks.
local function keep_time(job, time, ahead)
  call('HDEL', job, 'now')
  call('HSET', job, 'now', int(time), 'ahead', int(ahead))
end

-- Records from a position (entry, record) on, in an inbox with `head` records so far.
local function records_behind(head, entry, record)
  local first = tonumber(string.match(entry or '1-0', '^(%d+)-'))
  return math.max(0, tonumber(head or 0) + 1 - first - tonumber(record or 0))
end

-- Records in an inbox that its owner has not committed, and their bytes.
local function backlog(meta)
  local h = call('HMGET', meta, 'head', 'pos', 'rec', 'bytes')
  return records_behind(h[1], h[2], h[3]), tonumber(h[4] or 0)
end

-- Entries from an id on, of about `records` records and `bytes`. Entry ids count records, so a bound by records is a bound
-- by id. `held`: bytes in the inbox.
local function read_on(inbox, from, records, bytes, held)
  local bound = int(tonumber(string.match(from, '^(%d+)-')) + tonumber(records) - 1)
  local few = held <= tonumber(bytes) and 4096 or 16
  local entries, size = {}, 0
  repeat
    local page = call('XRANGE', inbox, from, bound, 'COUNT', few)
    for _, entry in ipairs(page) do
      entries[#entries + 1] = entry
      if entry[2][4] then size = size + #entry[2][4] end
    end
    if #page > 0 then from = '(' .. page[#page][1] end
  until #page < few or size >= tonumber(bytes)
  return entries
end

-- Pushes the partition's ticket unless one exists, or its owner is at work, or it waits for a full inbox.
local function ring(meta)
  local h = call('HMGET', meta, 'ring', 'queue', 'ticket')
  if not h[1] and h[2] then
    call('HSET', meta, 'ring', '1')
    call('LPUSH', h[2], h[3])
  end
end

-- Wakes the partitions that found this inbox full.
local function wake(waiting)
  for _, meta in ipairs(call('HKEYS', waiting)) do
    local h = call('HMGET', meta, 'ring', 'queue', 'ticket')
    if h[1] == 'w' then
      call('HSET', meta, 'ring', '1')
      call('LPUSH', h[2], h[3])
    end
  end
  call('DEL', waiting)
end

-- Appends one entry; its id is (records before it + 1)-(entries since the last record). payload may be nil, and that of
-- a control entry has no records.
local function put(inbox, meta, header, payload, count)
  local h = call('HMGET', meta, 'head', 'sub', 'bytes')
  local head, sub = tonumber(h[1] or 0), tonumber(h[2] or 0)
  local id = int(head + 1) .. '-' .. int(sub)
  if payload then
    call('XADD', inbox, id, 'h', header, 'd', payload)
    call('HSET', meta, 'head', int(head + count), 'sub', count > 0 and '0' or int(sub + 1), 'bytes', int(tonumber(h[3] or 0) + #payload))
  else
    call('XADD', inbox, id, 'h', header)
    call('HSET', meta, 'head', int(head), 'sub', int(sub + 1))
  end
  return id
end

-- The first of key, type, key, type, ... that exists with another type; a command on it would fail half-way.
local function foreign(wanted)
  for i = 1, #wanted, 2 do
    local kind = wanted[i] and call('TYPE', wanted[i]).ok or 'none'
    if kind ~= 'none' and kind ~= wanted[i + 1] then return wanted[i] end
  end
end

-- The first of `fields` of a hash that holds something else than a number, as a name for messages; `values` are what
-- HMGET gave for them. Arithmetic on it would fail half-way.
local function no_number(key, fields, values)
  for i = 1, #fields do
    if values[i] and (#values[i] > 17 or not string.match(values[i], '^%-?%d+$')) then return key .. ' ' .. fields[i] end
  end
end

-- The same for fields that are still to be read.
local function uncountable(key, ...)
  return no_number(key, {...}, call('HMGET', key, ...))
end

local function refusal(found) return redis.error_reply('FOREIGN ' .. found) end

-- Where the entries of an entry inbox wait for the job's shadow; or nothing, and what is foreign there.
local function tee_of(job, inbox)
  local root = string.sub(job, 1, -5)
  local stream, record = root .. ':tee:' .. string.match(inbox, ':inbox:(.+)$'), root .. ':shadow'
  local key = foreign({stream, 'stream', record, 'hash'})
  if key then return nil, key end
  local h = call('HMGET', record, 'bytes', 'limit')
  key = no_number(record, {'bytes', 'limit'}, h)
  if key then return nil, key end
  return {stream, record, tonumber(h[1] or 0), tonumber(h[2] or 0)}
end

-- Gives the shadow an entry that was appended as `id`. When too much waits for it, it is given up: no append ever waits.
local function tee(job, to, id, header, payload)
  local size = #header + #(payload or '') + 64
  local answer = {err = 'full'}
  if to[3] + size <= to[4] then
    if payload then
      answer = redis.pcall('XADD', to[1], id, 'h', header, 'd', payload)
    else
      answer = redis.pcall('XADD', to[1], id, 'h', header)
    end
  end
  if type(answer) == 'table' then
    call('HDEL', job, 'tee')
    call('HSET', to[2], 'given_up', 'slow')
    return
  end
  to[3] = to[3] + size
  call('HSET', to[2], 'bytes', int(to[3]))
end

-- True if one entry id stands in front of another.
local function before(one, other)
  local a, b = string.match(one, '^(%d+)-(%d+)')
  local c, d = string.match(other, '^(%d+)-(%d+)')
  a, b, c, d = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
  return a < c or (a == c and b < d)
end

-- What keeps an entry from being put into a stream whose meta says that `head` records, and `sub` entries behind them, are
-- in it: another program has added one of its own, and be it gone since, so XADD would fail half-way. Copies two entries.
local function stranger(stream, head, sub)
  if call('EXISTS', stream) == 0 then return end
  local info = call('XINFO', 'STREAM', stream)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' and not before(info[i + 1], int(head + 1) .. '-' .. int(sub)) then return stream end
  end
end

-- Why `put` or `ring` would fail half-way, or nothing.
local function unfit(inbox, meta)
  local h = call('HMGET', meta, 'head', 'sub', 'bytes', 'queue', 'ticket')
  local found = no_number(meta, {'head', 'sub', 'bytes'}, h)
    or stranger(inbox, tonumber(h[1] or 0), tonumber(h[2] or 0))
  return found or (h[4] and not h[5] and meta .. ' ticket')
end

-- Trims an output without named readers to its newest entries within the bounds; the last entry always stays, and so
-- does all behind `held`, where the slowest reader without a name stands.
local function keep_newest(out, meta, limit_records, limit_bytes, held)
  local records, bytes = backlog(meta)
  if records <= limit_records and bytes <= limit_bytes then return end
  local head, from, oldest, size = tonumber(call('HGET', meta, 'head')), '-', nil, 0
  local fits, few = false, 1
  repeat
    -- Most often little is too much, and entries are large: reading many costs more than all else in a commit.
    few = math.min(64, 2 * few)
    local page = call('XRANGE', out, from, '+', 'COUNT', few)
    for _, entry in ipairs(page) do
      bytes, oldest, size = bytes - size, entry[1], #(entry[2][4] or '')
      fits = bytes <= limit_bytes and head + 1 - tonumber(string.match(oldest, '^(%d+)-')) <= limit_records
      fits = fits or (held and not before(oldest, held))
      if fits then break end
    end
    from = '(' .. (oldest or '0-0')
  until fits or #page < few
  if not oldest then return end
  call('XTRIM', out, 'MINID', oldest)
  call('HSET', meta, 'pos', oldest, 'rec', '0', 'bytes', int(math.max(0, bytes)))
end

-- Puts one reader of an output at `at` (`entry` or `entry/record`), or takes it out (nil); then trims the output to what
-- its readers need and wakes the writers that this lets go on. A name that begins with _ is a reader without a name: it
-- holds what it has not read, but what it has read stays as if nobody read. Begins with a command that shrinks.
local function settle(out, meta, waiting, name, at, limit_records, limit_bytes, low)
  local slowest, held, named = nil, nil, 0
  local places = {}
  local all = call('HGETALL', meta)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'r:' then places[string.sub(all[i], 3)] = all[i + 1] end
  end
  places[name] = at
  for reader, place in pairs(places) do
    local entry = string.match(place, '^%d+-%d+')
    if string.sub(reader, 1, 1) == '_' then
      if not held or before(entry, held) then held = entry end
    else
      named = named + 1
      if not slowest or before(entry, slowest) then slowest = entry end
    end
  end
  if held and slowest and before(held, slowest) then slowest = held end
  local freed = 0
  if slowest then
    for _, entry in ipairs(call('XRANGE', out, '-', '(' .. slowest)) do freed = freed + #(entry[2][4] or '') end
  end
  local _, size = backlog(meta)
  size = int(math.max(0, size - freed))
  call('HLEN', waiting)
  local time = call('TIME')

  if slowest then call('XTRIM', out, 'MINID', slowest) end
  if at then
    call('HDEL', meta, 'held')
    call('HSET', meta, 'r:' .. name, at, 'h:' .. name, int(time[1] * 1000 + math.floor(time[2] / 1000)))
  else
    call('HDEL', meta, 'held', 'r:' .. name, 'h:' .. name, 'x:' .. name)
  end
  if held then call('HSET', meta, 'held', held) end
  if slowest then
    call('HSET', meta, 'readers', int(named), 'pos', slowest, 'rec', '0', 'bytes', size)
  else
    call('HDEL', meta, 'readers')
    keep_newest(out, meta, limit_records, limit_bytes, held)
  end
  local records, bytes = backlog(meta)
  local is_low = records <= low * limit_records and bytes <= low * limit_bytes
  local can_trim = not slowest and (not held or before(call('HGET', meta, 'pos') or '1-0', held))
  if is_low or can_trim then wake(waiting) end
end

-- True while `token` is the leader's, by a lease that was taken on this run of the server.
local function leads(leader, token)
  local h = call('HMGET', leader, 'token', 'server')
  return h[1] == token and h[2] == server
end

-- Gives a partition to its next owner, and rings, so that this one works at once. The one before loses it with this. Whose
-- it was and since when it stands still is noted until the new owner has acquired it: nobody worked on it before, so a
-- note that is there still keeps its beginning. Begins with a command that shrinks; the types are checked by the caller.
local function hand_over(meta, assignment, control, queue, moving, to)
  local h = call('HMGET', meta, 'owner', 'moved')
  local from, since = string.match(h[2] or '', '^([^|]*)|.*|(%d+)$')
  call('HDEL', meta, 'ring', 'trying', 'moved')
  call('HDEL', moving, to.place)
  call('DEL', queue)
  call('HSET', meta, 'term', to.term, 'token', to.token, 'owner', to.worker, 'queue', queue, 'ticket', to.ticket)
  if h[1] and to.why ~= '' then
    since = since and math.min(tonumber(since), to.since) or to.since
    call('HSET', meta, 'moved', table.concat({from or h[1], to.why, to.how, int(since)}, '|'))
  end
  call('HSET', assignment, to.place, to.worker .. '|' .. to.incarnation .. '|' .. to.token)
  ring(meta)
  call('XADD', control, 'MAXLEN', '~', 1000, '*', 'kind', 'Assign', 'partition', to.place, 'worker', to.worker, 'term', to.term,
    'leader', to.by)
end

-- Ends every ownership of a job's partitions, and notes where each one stands now. The next term is greater than any that
-- was ever given, also by a server that has forgotten it: terms become the milliseconds since the job was made.
-- `outs`: metas of the output streams, which keep where they ended as well.
local function end_ownerships(metas, outs, assignment, elapsed)
  local found, ends = {}, {}
  for i, out in ipairs(outs) do
    local m = call('HMGET', out, 'head', 'sub')
    ends[i] = int(tonumber(m[1] or 0) + 1) .. '-' .. (m[2] or '0')
  end
  for i, meta in ipairs(metas) do
    local m = call('HMGET', meta, 'term', 'pos', 'rec', 'head', 'sub')
    found[i] = {int(math.max(tonumber(m[1] or 0), elapsed)), m[2] .. '/' .. m[3], int(tonumber(m[4]) + 1) .. '-' .. m[5]}
  end
  call('DEL', assignment)
  for i, meta in ipairs(metas) do
    call('HDEL', meta, 'token', 'owner', 'trying', 'moved')
    call('HSET', meta, 'term', found[i][1], 'restored', found[i][2], 'restored_end', found[i][3])
  end
  for i, out in ipairs(outs) do call('HSET', out, 'restored_end', ends[i]) end
end

-- Puts a job into a state and writes it down; the newest 50 changes stay. Begins with a command that shrinks. By the job's
-- clock no change is earlier than the one before: who remembers more would take it for lost. Returns the time of it.
local function enter(job, state, reason)
  local time, ahead = now(job)
  local lines = {}
  for line in string.gmatch(call('HGET', job, 'history') or '', '[^\n]+') do lines[#lines + 1] = line end
  local short = string.gsub(reason, '%s+', ' ')
  if #short > 200 then short = string.gsub(string.sub(short, 1, 200), '[\192-\255][\128-\191]*$', '') .. '...' end
  lines[#lines + 1] = int(time) .. ' ' .. state .. ' ' .. short
  while #lines > 50 do table.remove(lines, 1) end
  call('HDEL', job, 'reason')
  keep_time(job, time, ahead)
  call('HSET', job, 'state', state, 'reason', reason, 'changed_at', int(time), 'history', table.concat(lines, '\n'))
  return int(time)
end

-- Takes the operation away, with a line for those who ask later; the newest 50 stay. Begins with a command that shrinks.
local function end_operation(job, operation, outcome)
  local time, ahead = now(job)
  local o = call('HMGET', operation, 'id', 'about', 'begun_at', 'switched_at')
  local lines = {}
  for line in string.gmatch(call('HGET', job, 'operations') or '', '[^\n]+') do lines[#lines + 1] = line end
  lines[#lines + 1] = table.concat({int(time), o[3] or '0', o[4] or '0', (string.gsub(outcome, '%s+', ' ')), o[2] or ''}, '\t')
  while #lines > 50 do table.remove(lines, 1) end
  call('DEL', operation)
  keep_time(job, time, ahead)
  call('HSET', job, 'operations', table.concat(lines, '\n'))
end

-- The operation that keeps others from beginning: {what it is, its phase, milliseconds since it began}, or nothing where
-- there is none. One whose command was not heard until its time keeps nobody: the second answer, for whoever begins to
-- end it by `end_operation`; behind that, what is foreign in it. A shadow keeps them until it is taken away.
local function under_way(job, operation)
  local o = call('HMGET', operation, 'id', 'about', 'phase', 'begun_at', 'until')
  if not o[1] then return end
  local found = no_number(operation, {'begun_at', 'until'}, {o[4], o[5]}) or uncountable(operation, 'switched_at')
  if found then return nil, false, found end
  local time = now(job)
  if o[5] and tonumber(o[5]) < time and not call('HGET', job, 'shadow') then return nil, true end
  return {o[2] or '', o[3] or '', math.max(0, time - tonumber(o[4] or time))}
end

local GONE = 'given up: its command is gone'

-- Those that a partition gives keys to (`tells` in its meta), as `arrive` needs them; or nothing, and what is foreign there.
-- `promised`: pairs that its log holds beside what is written there by now.
local function receivers(root, meta, log, promised)
  local stage, found = string.match(meta, ':meta:(%d+)%.%d+$'), {}
  local own = {}
  for number in string.gmatch(call('HGET', meta, 'tells') or '', '%d+') do
    local to = {meta = root .. ':meta:' .. stage .. '.' .. number, log = root .. ':log:' .. stage .. '.' .. number}
    local m = redis.pcall('HMGET', to.meta, 'gate', 'ring', 'queue', 'ticket', 'fresh')
    if m.err then return nil, to.meta end
    local key = no_number(to.meta, {'gate'}, m)
    if key then return nil, key end
    to.gate = math.max(0, tonumber(m[1] or 0) - 1)
    to.queue, to.ticket = to.gate == 0 and m[2] == 'g' and m[3], m[4]
    if to.queue and not to.ticket then return nil, to.meta .. ' ticket' end
    key = foreign({to.queue, 'list', to.log, 'hash'})
    if key then return nil, key end
    if m[5] then
      if #own == 0 then
        own = call('HGETALL', log)
        for _, part in ipairs(promised) do own[#own + 1] = part end
      end
      to.promises = {}
      for i = 1, #own, 2 do
        if string.sub(own[i], 1, 2) == 'w:' then
          key = no_number(log, {own[i]}, {own[i + 1]}) or uncountable(to.log, own[i])
          if key then return nil, key end
          to.promises[#to.promises + 1], to.promises[#to.promises + 2] = own[i], own[i + 1]
        end
      end
    end
    found[#found + 1] = to
  end
  return found
end

-- The giver has committed all in front of its mark: those that wait for it wait for one fewer, and go on when it was the
-- last. A new one has heard of time what its givers have: each promise is about its sender.
local function arrive(found)
  for _, to in ipairs(found) do
    call('HSET', to.meta, 'gate', int(to.gate))
    for i = 1, #(to.promises or {}), 2 do
      local known = call('HGET', to.log, to.promises[i])
      if not known or tonumber(known) < tonumber(to.promises[i + 1]) then
        call('HSET', to.log, to.promises[i], to.promises[i + 1])
      end
    end
    if to.queue then
      call('HSET', to.meta, 'ring', '1')
      call('LPUSH', to.queue, to.ticket)
    end
  end
end
