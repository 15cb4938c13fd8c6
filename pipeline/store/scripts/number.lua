-- The next number for a staging file of a partition whose tasks share one token: it is greater than all before.
-- KEYS: meta    Returns {number}, {-5} there is no such partition
-- The first write is an HDEL, which a Redis without memory lets through.
if not call('HGET', KEYS[1], 'pos') then return {-5} end
local found = uncountable(KEYS[1], 'numbered')
if found then return refusal(found) end

call('HDEL', KEYS[1], 'nothing')
return {call('HINCRBY', KEYS[1], 'numbered', 1)}
