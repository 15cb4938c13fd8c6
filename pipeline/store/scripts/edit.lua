-- Keeps another form of a dead letter's record, which is the one that a replay takes.
-- KEYS: dead letters, edits    ARGV: letter id, payload
-- Returns {1}, {-1} no such letter
if #call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return {-1} end
call('HSET', KEYS[2], ARGV[1], ARGV[2])
return {1}
