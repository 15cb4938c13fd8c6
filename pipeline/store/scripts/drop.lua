-- Deletes dead letters.
-- KEYS: dead letters, edits    ARGV: letter ids, at most 4,000
-- Returns {how many there were}
local count = call('XDEL', KEYS[1], unpack(ARGV))
call('HDEL', KEYS[2], unpack(ARGV))
return {count}
