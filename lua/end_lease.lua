-- Ends a lease that `take_lease` took, and the responses of its order. After a failed order, no gateway orders the
-- certificate for a time.
--
-- KEYS[1]  the responses to authorities: see `read_orders`
-- KEYS[2]  the failed orders: see `take_lease`
-- KEYS[3]  the certificate's lease
-- KEYS[4]  and later: the leases of domains
-- ARGV[1]  the owner
-- ARGV[2]  the certificate's name
-- ARGV[3]  the number of failed orders, or 0
-- ARGV[4]  the length of the pause, in ms
-- ARGV[5]  the text of the lease during the pause; empty: there is no pause
-- ARGV[6]  and later: the responses
-- Returns  1 if the lease has ended, 0 if it was lost
local call = redis.call

for i = 6, #ARGV do call('ZREM', KEYS[1], ARGV[i]) end
for i = 4, #KEYS do
  if call('GET', KEYS[i]) == ARGV[1] then call('DEL', KEYS[i]) end
end
if call('GET', KEYS[3]) ~= ARGV[1] then return 0 end
if ARGV[5] == '' then
  call('DEL', KEYS[3])
else
  call('HSET', KEYS[2], ARGV[2], ARGV[3])
  call('SET', KEYS[3], ARGV[5], 'PX', ARGV[4])
end
return 1
