-- Forgets a sender that will never send again. Its name and number are used for nobody else.
-- KEYS: log, senders, job, visitors    ARGV: sender name, id, epoch, what it is among the visitors
-- Returns {1} forgotten, {0} it is not known, or a newer instance of it exists, {-5} no such job
local log, senders, id = KEYS[1], KEYS[2], ARGV[2]
if call('EXISTS', KEYS[3]) == 0 then return {-5} end
if call('HGET', log, 'e:' .. id) ~= ARGV[3] then return {0} end
local last = call('HGET', log, id)
local found = uncountable(log, id, 'gone')
if found then return refusal(found) end
call('HDEL', log, id, 'e:' .. id, 'n:' .. id, 'w:' .. id, 'p:' .. id)
call('HINCRBY', log, 'gone', last or '0')
call('HDEL', senders, 'n:' .. ARGV[1])
call('ZREM', KEYS[4], ARGV[4])
return {1}
