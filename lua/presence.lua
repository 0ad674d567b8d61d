-- Says that a gateway is alive, and counts those that are.
--
-- KEYS[1]  the gateways: a sorted set of their ids by the time they last reported
-- ARGV[1]  this gateway's id
-- ARGV[2]  how long a report counts, in ms; 0: this gateway leaves
-- Returns  the gateways alive, this one included unless it leaves
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local lifetime = tonumber(ARGV[2])

if lifetime == 0 then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - lifetime))
  redis.call('PEXPIRE', KEYS[1], lifetime * 2)
end
return redis.call('ZCARD', KEYS[1])
