-- Gives the lease back, so that another leader need not wait for it to end.
-- KEYS: leader    ARGV: token
-- Returns {1}, also when the lease is another's by now
if leads(KEYS[1], ARGV[1]) then call('HDEL', KEYS[1], 'until') end
return {1}
