-- Some of hashes or sorted sets as they were at the cut. Writes nothing.
-- KEYS: pairs: a key, what was kept of it    ARGV: h or z, about how many fields of each, then the cursor of each
-- Returns for each {next cursor, name, value, name, value, ... as pairs, all that was kept of it as pairs, or 0 while it is
--   not needed, or 1 for too much}
local found = {}
for k = 1, #KEYS, 2 do
  local page = call(ARGV[1] == 'z' and 'ZSCAN' or 'HSCAN', KEYS[k], ARGV[2 + (k + 1) / 2], 'COUNT', ARGV[2])
  local size, names, pairs_ = call('HLEN', KEYS[k + 1]), {}, {}
  if size == 0 then
    pairs_ = page[2]
  else
    for i = 1, #page[2], 2 do names[#names + 1] = page[2][i] end
  end
  for i = 1, #names, 4000 do
    for n, old in ipairs(call('HMGET', KEYS[k + 1], unpack(names, i, math.min(i + 3999, #names)))) do
      local at = 2 * (i + n - 1) - 1
      if old ~= '' then
        pairs_[#pairs_ + 1] = page[2][at]
        pairs_[#pairs_ + 1] = old or page[2][at + 1]
      end
    end
  end
  local kept = 0
  if page[1] == '0' then
    kept = size > 2 * tonumber(ARGV[2]) and 1 or call('HGETALL', KEYS[k + 1])
  end
  found[#found + 1] = {page[1], pairs_, kept}
end
return found
