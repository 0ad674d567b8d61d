-- Adds responses to authorities, which all gateways give.
--
-- KEYS[1]  the responses: see `read_orders`
-- KEYS[2]  the certificate's lease
-- ARGV[1]  the owner of the lease
-- ARGV[2]  the time until the responses end, in ms
-- ARGV[3]  and later: the responses
-- Returns  1 if they were added, 0 if the lease was lost
local call = redis.call

if call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
for i = 3, #ARGV do call('ZADD', KEYS[1], now + ARGV[2], ARGV[i]) end
-- Of several orders, the one that ends last decides.
if call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
