-- Takes the lease of an order by ACME: one gateway orders a certificate.
--
-- KEYS[1]  the failed orders: a hash of their number since the last successful one, by certificate
-- KEYS[2]  the certificate's lease: a string, the owner's text, or `paused` and more after a failed order
-- KEYS[3]  and later: the leases of domains that only one order may prove at a time
-- ARGV[1]  the owner
-- ARGV[2]  the length of the lease, in ms
-- ARGV[3]  the certificate's name
-- ARGV[4]  'forced' if a pause does not count
-- Returns  the number of failed orders, or -1 if a lease is taken
local call = redis.call

for i = 2, #KEYS do
  local owner = call('GET', KEYS[i])
  if owner and not (i == 2 and ARGV[4] == 'forced' and string.sub(owner, 1, 7) == 'paused ') then return -1 end
end
for i = 2, #KEYS do call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2]) end
return tonumber(call('HGET', KEYS[1], ARGV[3]) or 0) or 0
