-- Says how the workers of one pool of a job are scaled, or that their number is fixed. Called by the run that has it.
-- KEYS: job
-- ARGV: settings or '' for fixed, minimum, maximum, workers to begin with or '' for as many as there were,
--       '' for the pool `main`, ':name' for another one
-- Returns {1, workers wanted}, or {-5} no such job
if call('HEXISTS', KEYS[1], 'state') == 0 then return {-5} end
if ARGV[1] == '' then
  call('HDEL', KEYS[1], 'scaling' .. ARGV[5], 'workers_wanted' .. ARGV[5], 'scaled_at' .. ARGV[5])
  return {1, 0}
end
local before = call('HGET', KEYS[1], 'workers_wanted' .. ARGV[5])
local wanted = tonumber(ARGV[4]) or tonumber(before or '') or tonumber(ARGV[2])
wanted = math.max(tonumber(ARGV[2]), math.min(tonumber(ARGV[3]), wanted))
call('HDEL', KEYS[1], 'scaled_at' .. ARGV[5])
call('HSET', KEYS[1], 'scaling' .. ARGV[5], ARGV[1], 'workers_wanted' .. ARGV[5], int(wanted))
return {1, wanted}
