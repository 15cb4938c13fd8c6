-- Takes the tickets that wait for partitions of one owner, and reads what they are for, all in one round trip.
-- KEYS: job, then inbox, meta, queue of each partition
-- ARGV: table version, records to read, bytes to read, then for each partition: token, entry and record of its position
-- Returns for each ticket taken: {number of the partition, entries}. A partition that moved on, or is another's, keeps its ticket.
-- The first write is an RPOP, which a Redis without memory lets through.
local j = call('HMGET', KEYS[1], 'state', 'table', 'run_id')
if (j[1] ~= 'running' and j[1] ~= 'draining') or j[2] ~= ARGV[1] or j[3] ~= server then return {} end
local taken, queues = {}, {}
for n = 1, (#KEYS - 1) / 3 do
  local inbox, meta, queue, at = KEYS[3 * n - 1], KEYS[3 * n], KEYS[3 * n + 1], 3 * n + 1
  if call('LLEN', queue) > 0 then
    local m = call('HMGET', meta, 'token', 'pos', 'rec', 'bytes')
    if m[1] == ARGV[at] and m[2] == ARGV[at + 1] and m[3] == ARGV[at + 2] then
      queues[#queues + 1] = queue
      taken[#taken + 1] = {n, read_on(inbox, ARGV[at + 1], ARGV[2], ARGV[3], tonumber(m[4] or 0))}
    end
  end
end
for _, queue in ipairs(queues) do call('RPOP', queue) end
return taken
