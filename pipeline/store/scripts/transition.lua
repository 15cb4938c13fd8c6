-- Changes the job's state, if it is one of the states that may precede the new one.
-- A job from which writes were lost runs again only by accept, one that is being restored only by restored.
-- KEYS: job, control, leader    ARGV: new state, reason, leader token or '' (from outside), then the allowed states before
-- Returns {1} changed, {0, state} it is in another state, {-1} no longer the leader, {-2} writes were lost, {-5} no such job,
--   {-8} it is being restored
local j = call('HMGET', KEYS[1], 'state', 'lost', 'restoring')
local state = j[1]
if not state then return {-5} end
if ARGV[1] == 'running' and j[2] then return {-2} end
if ARGV[1] == 'running' and j[3] then return {-8} end
if ARGV[3] ~= '' and not leads(KEYS[3], ARGV[3]) then return {-1} end
local allowed = false
for i = 4, #ARGV do allowed = allowed or ARGV[i] == state end
if not allowed then return {0, state} end
enter(KEYS[1], ARGV[1], ARGV[2])
call('XADD', KEYS[2], 'MAXLEN', '~', 1000, '*', 'kind', 'State', 'state', ARGV[1])
return {1}
