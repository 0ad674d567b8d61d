-- Writes one generation of a throttle's filter, unless another gateway has written it since it was read.
--
-- KEYS[1]  the generation: a hash with `ts`, a whole number above 0 and below 2^53 - 1, and `value`
-- ARGV[1]  the ts that was read; 0: none or malformed
-- ARGV[2]  the value
-- ARGV[3]  the TTL, in s
-- ARGV[4]  now in ms, which only tests pass; 0: this server's clock
-- Returns  an array of two: 1 if the value was written, else 0; and the ts that is now stored (0: none or
--          malformed)
--
-- The ts grows with each write, even if the clock is set back. A malformed generation is replaced.
local call = redis.call

local kind = call('TYPE', KEYS[1]).ok
local ts = kind == 'hash' and call('HSTRLEN', KEYS[1], 'ts') <= 16 and call('HGET', KEYS[1], 'ts') or ''
local current = string.find(ts, '^[1-9]%d*$') and ts + 0 or 0
if current >= 9007199254740991 then current = 0 end
if current ~= ARGV[1] + 0 then return {0, current} end

local now = ARGV[4] + 0
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
end
local new = now > current and now or current + 1

-- DEL only if the key exists: it counts as a write, and Redis checks maxmemory only before a script's first
-- write.
if current == 0 and kind ~= 'none' then call('DEL', KEYS[1]) end
call('HSET', KEYS[1], 'ts', string.format('%.0f', new), 'value', ARGV[2])
call('EXPIRE', KEYS[1], ARGV[3])
return {1, new}
