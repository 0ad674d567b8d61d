-- Reports that a gateway is alive; returns the live gateways and the records that were deleted recently.
--
-- KEYS[1]  the gateways: a sorted set of members by the time of their last report (ms)
-- KEYS[2]  the resets: a sorted set of deleted records by the time of deletion (ms); `reset` writes it
-- ARGV[1]  this gateway's member
-- ARGV[2]  how long a report is valid, in ms; 0: remove this gateway
-- ARGV[3]  the time of this gateway's last report, in ms by this server's clock
-- Returns  an array of three: the live members (with this one, unless it was removed), now (ms), and the
--          records that were deleted since the last report
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local lifetime = tonumber(ARGV[2])

-- Deletes a key that another program has overwritten, so that it can be written again.
for _, key in ipairs(KEYS) do
  local type = redis.call('TYPE', key).ok
  if type ~= 'zset' and type ~= 'none' then redis.call('DEL', key) end
end
if lifetime == 0 then
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - lifetime))
  redis.call('PEXPIRE', KEYS[1], lifetime * 2)
end
return {redis.call('ZRANGE', KEYS[1], 0, -1), now, redis.call('ZRANGEBYSCORE', KEYS[2], ARGV[3], '+inf')}
