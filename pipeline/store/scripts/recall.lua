-- Where partitions stood when this run of the server began, for somebody who remembers where they were before.
-- KEYS: job, then the meta of each partition    ARGV: made_at.generation of the job that is remembered
-- Returns {1, positions as entry/record}, {-2} another job or generation, {-5} no such job
local j = call('HMGET', KEYS[1], 'made_at', 'generation', 'run_id')
if not j[1] then return {-5} end
if j[1] .. '.' .. j[2] ~= ARGV[1] then return {-2} end
local found = {}
for i = 2, #KEYS do
  local m = call('HMGET', KEYS[i], 'restored', 'pos', 'rec')
  -- Before the leader has adopted this run nobody commits: the partition stands where it stood.
  found[i - 1] = j[3] == server and m[1] or (m[2] or '1-0') .. '/' .. (m[3] or '0')
end
return {1, found}
