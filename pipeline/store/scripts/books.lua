-- The counts of a whole job, read at one instant. Writes nothing.
-- KEYS: job, dead letters, files; then inbox, meta, log of each partition; then meta, log of each output stream
-- ARGV: number of partitions
-- Returns {1, state, letters dropped, letters there, files as pairs, partitions, streams}, or {-5} no such job
--   a partition: {pos, rec, head, sub, taken, emitted, left_out, letters, sent; log as pairs; header of the entry at the
--   position, '' at the end of the inbox, '?' where it should be and is not};  a stream: {head; log as pairs}
local j = call('HMGET', KEYS[1], 'state', 'dropped')
if not j[1] then return {-5} end
local partitions, streams = {}, {}
local count = tonumber(ARGV[1])
for n = 1, count do
  local inbox, meta, log = KEYS[3 * n + 1], KEYS[3 * n + 2], KEYS[3 * n + 3]
  local m = call('HMGET', meta, 'pos', 'rec', 'head', 'sub', 'taken', 'emitted', 'left_out', 'letters', 'sent')
  local header = ''
  if m[1] ~= int(tonumber(m[3] or 0) + 1) .. '-' .. (m[4] or '0') then
    local entry = call('XRANGE', inbox, m[1] or '1-0', m[1] or '1-0')[1]
    header = entry and entry[2][2] or '?'
  end
  partitions[n] = {m, call('HGETALL', log), header}
end
for at = 4 + 3 * count, #KEYS, 2 do
  streams[#streams + 1] = {call('HGET', KEYS[at], 'head') or '0', call('HGETALL', KEYS[at + 1])}
end
return {1, j[1], j[2] or '0', call('XLEN', KEYS[2]), call('HGETALL', KEYS[3]), partitions, streams}
