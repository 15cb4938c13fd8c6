-- A node is to have no work, or may have some again. The mark outlives leaders; they give its partitions to others.
-- KEYS: drained, job
-- ARGV: node, stay or stop (its agent ends when it owns nothing), or '' to take the mark away, most marks: then the oldest
--   of nodes that were to stop, and have done so long ago, go
-- Returns {1}, {0} there was no mark to take away, {-5} no such job
if call('EXISTS', KEYS[2]) == 0 then return {-5} end
if ARGV[2] == '' then return {call('HDEL', KEYS[1], ARGV[1])} end
local time = now(KEYS[2])
local key = foreign({KEYS[1], 'hash'})
if key then return redis.error_reply('WRONGTYPE ' .. key) end
local stopped, excess = {}, call('HLEN', KEYS[1]) + 1 - call('HEXISTS', KEYS[1], ARGV[1]) - tonumber(ARGV[3])
if excess > 0 then
  local marks = call('HGETALL', KEYS[1])
  for i = 1, #marks, 2 do
    local at = string.match(marks[i + 1], '^(%d+) stop$')
    if at and marks[i] ~= ARGV[1] then stopped[#stopped + 1] = {tonumber(at), marks[i]} end
  end
  table.sort(stopped, function(a, b) return a[1] < b[1] end)
end

call('HDEL', KEYS[1], ARGV[1])
for i = 1, math.min(excess, #stopped) do call('HDEL', KEYS[1], stopped[i][2]) end
call('HSET', KEYS[1], ARGV[1], int(time) .. ' ' .. ARGV[2])
return {1}
