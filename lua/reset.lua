-- Announces deleted records to the gateways, which may hold units or denials of them.
--
-- KEYS[1]  the resets: a sorted set of the names of deleted records, by the time of deletion (ms)
-- ARGV[1]  how long an entry is kept, in ms
-- ARGV[2+] the records' names
-- Returns  nothing
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local type = redis.call('TYPE', KEYS[1]).ok
if type ~= 'zset' and type ~= 'none' then redis.call('DEL', KEYS[1]) end
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[i]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - ARGV[1]))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
