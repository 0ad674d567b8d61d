-- Writes back the overrides that a gateway knows, after Redis has lost its data.
--
-- KEYS[1]  the overrides: see `write_override`
-- ARGV[1]  the version that the gateway knows
-- ARGV[2]  now in ms, which only tests pass; 0: this server's clock
-- ARGV[3]  and later: each id, followed by its text
-- Returns  1 if they were written, 0 if the key exists
local call = redis.call

if call('EXISTS', KEYS[1]) == 1 then return 0 end
local now = ARGV[2] + 0
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
end
local new = now > ARGV[1] + 0 and now or ARGV[1] + 1
call('HSET', KEYS[1], 'version', string.format('%.0f', new))
for i = 3, #ARGV, 2 do call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
