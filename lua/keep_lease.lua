-- Extends a lease that `take_lease` took.
--
-- KEYS     its keys: the certificate's lease, and those of domains
-- ARGV[1]  the owner
-- ARGV[2]  its length from now on, in ms
-- Returns  1 if it was extended, 0 if it was lost
local call = redis.call

for i = 1, #KEYS do
  if call('GET', KEYS[i]) ~= ARGV[1] then return 0 end
end
for i = 1, #KEYS do call('PEXPIRE', KEYS[i], ARGV[2]) end
return 1
