-- Rings a partition that has work and nobody who knows of it: its ticket was lost, or its flag is stale.
-- KEYS: leader, meta, queue    ARGV: leader token, '1' if its owner is in a slice or holds work back
-- Returns {1} rung, {0} nothing to do, {-1} no longer the leader
if not leads(KEYS[1], ARGV[1]) then return {-1} end
local h = call('HMGET', KEYS[2], 'ring', 'queue', 'ticket', 'pos', 'head', 'sub')
if not h[2] then return {0} end
local there = h[4] ~= int(tonumber(h[5]) + 1) .. '-' .. h[6]
if not there or ARGV[2] == '1' or call('LLEN', KEYS[3]) > 0 then return {0} end
call('HDEL', KEYS[2], 'ring')
ring(KEYS[2])
return {1}
