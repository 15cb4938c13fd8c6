-- Entries that stood in an inbox at the cut, kept or still there. Writes nothing.
-- KEYS: inbox, what was kept of it    ARGV: from, the mark, how many at most
-- Returns the entries
local found = call('XRANGE', KEYS[2], ARGV[1], '(' .. ARGV[2], 'COUNT', ARGV[3])
if #found < tonumber(ARGV[3]) then
  if #found > 0 then ARGV[1] = '(' .. found[#found][1] end
  for _, entry in ipairs(call('XRANGE', KEYS[1], ARGV[1], '(' .. ARGV[2], 'COUNT', int(tonumber(ARGV[3]) - #found))) do
    found[#found + 1] = entry
  end
end
return found
