-- Reads what gateways share about certificates that are ordered by ACME.
--
-- KEYS[1]  the responses to authorities: a sorted set, scored by the time at which they end, in ms since the epoch
-- KEYS[2]  the versions of certificates: a hash
-- KEYS[3]  and later: the lease of each certificate that the gateway wants to know about
-- ARGV[1]  the largest number of responses
-- ARGV[2]  and later: the names of these certificates
-- Returns  the responses, the one that ends last at the end; and for each certificate its version or false, the text of
--          its lease or false, and the time that is left of the lease, in ms
local call = redis.call

local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local responses = call('ZRANGEBYSCORE', KEYS[1], now, '+inf', 'LIMIT', 0, ARGV[1])
local certificates = {}
for i = 2, #ARGV do
  local lease = KEYS[i + 1]
  certificates[i - 1] = { call('HGET', KEYS[2], ARGV[i]), call('GET', lease), call('PTTL', lease) }
end
return { responses, certificates }
