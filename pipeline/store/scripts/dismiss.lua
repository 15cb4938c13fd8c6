-- Takes a reader out of an output stream: nothing is kept for it any more, and those who wait for it are woken.
-- KEYS: out, meta, waiting    ARGV: reader, inbox_records, inbox_bytes, low mark
-- Returns {1}, {0} no such reader
if call('HEXISTS', KEYS[2], 'r:' .. ARGV[1]) == 0 then return {0} end
settle(KEYS[1], KEYS[2], KEYS[3], ARGV[1], nil, tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
return {1}
