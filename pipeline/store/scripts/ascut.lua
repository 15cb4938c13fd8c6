-- Some of a hash or a sorted set as it was at the cut. Writes nothing.
-- KEYS: the key, what was kept of it    ARGV: cursor, about how many, h or z
-- Returns {next cursor, name, value, name, value, ... as pairs, all that was kept of it as pairs, or 0 while it is not needed,
--   or 1 for too much}
local page = call(ARGV[3] == 'z' and 'ZSCAN' or 'HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local names, found = {}, {}
for i = 1, #page[2], 2 do names[#names + 1] = page[2][i] end
for i = 1, #names, 4000 do
  for n, old in ipairs(call('HMGET', KEYS[2], unpack(names, i, math.min(i + 3999, #names)))) do
    local at = 2 * (i + n - 1) - 1
    if old ~= '' then
      found[#found + 1] = page[2][at]
      found[#found + 1] = old or page[2][at + 1]
    end
  end
end
if page[1] ~= '0' then return {page[1], found, 0} end
if call('HLEN', KEYS[2]) > 2 * tonumber(ARGV[2]) then return {'0', found, 1} end
return {'0', found, call('HGETALL', KEYS[2])}
