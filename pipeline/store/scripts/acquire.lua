-- What a new owner starts from, read at one instant. It works once without a ticket: those that wait are taken away, and
-- the ring flag says that the owner is at work.
-- KEYS: meta, log, job, queue, then the held keys of each key group, where the stage holds keys    ARGV: token
-- Returns {1, meta as pairs, log as pairs, table version, made_at.generation, held keys as pairs},
--   {-1} fenced, {-5} the job does not run, {-6} this run of the server is not adopted yet: a token from before it is
--   worth nothing
local j = call('HMGET', KEYS[3], 'state', 'table', 'made_at', 'generation', 'run_id')
if j[1] ~= 'running' and j[1] ~= 'draining' then return {-5} end
if j[5] ~= server then return {-6} end
if call('HGET', KEYS[1], 'token') ~= ARGV[1] then return {-1} end
call('DEL', KEYS[4])
call('HSET', KEYS[1], 'ring', '1')
local held = {}
for i = 5, #KEYS do
  for _, part in ipairs(call('HGETALL', KEYS[i])) do held[#held + 1] = part end
end
return {1, call('HGETALL', KEYS[1]), call('HGETALL', KEYS[2]), j[2], j[3] .. '.' .. j[4], held}
