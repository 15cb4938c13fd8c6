-- Keeps what was found wrong in a job's books, each finding once and a bounded number of them.
-- KEYS: leader, books    ARGV: leader token, most findings, then for each finding: its name, its text as it is kept
-- Returns {1, names of those that are new}, or {-1} no longer the leader
-- The first write is an HDEL, which a Redis without memory lets through.
if not leads(KEYS[1], ARGV[1]) then return {-1} end
local held, fresh = call('HLEN', KEYS[2]), {}
for i = 3, #ARGV, 2 do
  if held + #fresh < tonumber(ARGV[2]) and call('HEXISTS', KEYS[2], ARGV[i]) == 0 then
    fresh[#fresh + 1] = ARGV[i]
    call('HDEL', KEYS[2], ARGV[i])
    call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  end
end
return {1, fresh}
