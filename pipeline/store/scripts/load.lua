-- Reads state of several key groups at once.
-- KEYS: the state of each key group    ARGV: for each key n, n fields
-- Returns for each key how many fields it has, then its fields' values
local found, at = {}, 1
for i, key in ipairs(KEYS) do
  local values, n = {call('HLEN', key)}, tonumber(ARGV[at])
  for from = at + 1, at + n, 4000 do
    for _, value in ipairs(call('HMGET', key, unpack(ARGV, from, math.min(from + 3999, at + n)))) do
      values[#values + 1] = value
    end
  end
  found[i] = values
  at = at + 1 + n
end
return found
