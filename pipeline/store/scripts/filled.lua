-- Which keys may have held something at the cut. Writes nothing.
-- KEYS: pairs: a key, what was kept of it    ARGV: h for hashes, z for sorted sets
-- Returns place, fields, place, fields, ... of those that are there, or of which something was kept
local found = {}
for i = 1, #KEYS, 2 do
  local fields = call(ARGV[1] == 'z' and 'ZCARD' or 'HLEN', KEYS[i]) + call('HLEN', KEYS[i + 1])
  if fields > 0 then
    found[#found + 1] = (i + 1) / 2
    found[#found + 1] = fields
  end
end
return found
