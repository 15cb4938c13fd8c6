-- Takes out the readers of an output stream that were silent for longer than they said when they registered.
-- KEYS: leader, out, meta, waiting    ARGV: leader token, inbox_records, inbox_bytes, low mark
-- Returns {1, readers}, or {-1} no longer the leader
if not leads(KEYS[1], ARGV[1]) then return {-1} end
local meta, silent = KEYS[3], {}
local time = call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local all = call('HGETALL', meta)
local heard = {}
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 2) == 'h:' then heard[string.sub(all[i], 3)] = tonumber(all[i + 1]) end
end
for i = 1, #all, 2 do
  local name = string.sub(all[i], 3)
  if string.sub(all[i], 1, 2) == 'x:' and now_ms > (heard[name] or 0) + tonumber(all[i + 1]) then silent[#silent + 1] = name end
end
for _, name in ipairs(silent) do
  settle(KEYS[2], meta, KEYS[4], name, nil, tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
end
return {1, silent}
