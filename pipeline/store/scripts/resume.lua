-- What there is of an output stream and of one reader of it, for that reader when another run of the server answers.
-- KEYS: job, meta    ARGV: reader
-- Returns {1, made_at.generation, run id of the server that was adopted, place behind the last entry when the server began,
--   the reader's place or ''}, or {-5} no such job
local j = call('HMGET', KEYS[1], 'made_at', 'generation', 'run_id')
if not j[1] then return {-5} end
local m = call('HMGET', KEYS[2], 'restored_end', 'head', 'sub', 'r:' .. ARGV[1])
local last = int(tonumber(m[2] or 0) + 1) .. '-' .. (m[3] or '0')
-- Before the leader has adopted this run nothing is added: the stream ends where it ended.
return {1, j[1] .. '.' .. j[2], j[3], j[3] == server and m[1] or last, m[4] or ''}
