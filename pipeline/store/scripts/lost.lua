-- Somebody remembers what Redis does not: its last writes are lost. The job halts, and keeps what each one has said.
-- KEYS: job, control    ARGV: made_at.generation of the job that is spoken of, one line that says what is missing
-- Returns {1} noted, {0} it was said before, or too much was, {-2} another job or generation, {-5} no such job
local j = call('HMGET', KEYS[1], 'state', 'made_at', 'generation', 'lost', 'reason')
if not j[1] then return {-5} end
if j[2] .. '.' .. j[3] ~= ARGV[1] then return {-2} end
local lines, count = j[4] or '', 0
for line in string.gmatch(lines, '[^\n]+') do
  if line == ARGV[2] then return {0} end
  count = count + 1
end
if count >= 100 then return {0} end
if foreign({KEYS[2], 'stream'}) then return redis.error_reply('WRONGTYPE ' .. KEYS[2]) end
now(KEYS[1])  -- stops here where somebody has bent the clock
call('HDEL', KEYS[1], 'lost')
call('HSET', KEYS[1], 'lost', lines == '' and ARGV[2] or lines .. '\n' .. ARGV[2])
if j[1] == 'running' or j[1] == 'draining' or j[1] == 'publishing' then
  enter(KEYS[1], 'failed', 'Redis has lost its last writes: ' .. ARGV[2])
  call('HSET', KEYS[1], 'halted', j[1])
  call('XADD', KEYS[2], 'MAXLEN', '~', 1000, '*', 'kind', 'State', 'state', 'failed')
elseif j[1] == 'failed' and lines ~= '' and count < 10 then
  call('HSET', KEYS[1], 'reason', j[5] .. '; ' .. ARGV[2])
end
return {1}
