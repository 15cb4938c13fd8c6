-- Which keys may have held something at the cut. Writes nothing.
-- KEYS: pairs: a key, what was kept of it
-- Returns the places of those that are there, or of which something was kept
local found = {}
for i = 1, #KEYS, 2 do
  if call('EXISTS', KEYS[i], KEYS[i + 1]) > 0 then found[#found + 1] = (i + 1) / 2 end
end
return found
