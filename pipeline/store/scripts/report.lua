-- The command of a shadow tells how far that is, and hears what others want of it.
-- KEYS: shadow    ARGV: token, report (JSON), answer to what was wanted, or '' while there is none
-- Returns {1, what is wanted, or ''}, {-1} the shadow was taken away
-- The first write is an HDEL, which a Redis without memory lets through.
if call('HGET', KEYS[1], 'token') ~= ARGV[1] then return {-1} end
local want = call('HGET', KEYS[1], 'want') or ''
call('HDEL', KEYS[1], 'report')
if ARGV[3] ~= '' then
  call('HDEL', KEYS[1], 'want')
  call('HSET', KEYS[1], 'answer', ARGV[3])
  want = ''
end
call('HSET', KEYS[1], 'report', ARGV[2])
return {1, want}
