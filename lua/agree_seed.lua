-- Agrees on the seed of a throttle's filters, and tells the time.
--
-- KEYS[1]  the seed: 96 hexadecimal digits
-- ARGV[1]  the seed to set where there is none, or none that can be read; empty: set nothing
-- ARGV[2]  how long a seed outlives the last gateway, in s
-- ARGV[3]  now in ms; 0: this server's own clock (tests alone pass another)
-- Returns  now in ms, the seed (empty: none), whether there was none before (1 or 0), and what was
--          there instead (0: nothing to refuse, 1: a text that is no seed, 2: a key of another type)
local call = redis.call

local now = ARGV[3] + 0
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
end

local lifetime = ARGV[2] + 0
local kind = call('TYPE', KEYS[1]).ok
local refused = 0
if kind == 'string' then
  -- What is too long is not read.
  local seed = call('STRLEN', KEYS[1]) == 96 and call('GET', KEYS[1]) or ''
  if #seed == 96 and not string.find(seed, '%X') then
    -- Written rarely, so that a server that only reads can still be read from.
    if call('TTL', KEYS[1]) < lifetime / 2 then call('EXPIRE', KEYS[1], lifetime) end
    return {now, seed, 0, 0}
  end
  refused = 1
elseif kind ~= 'none' then
  refused = 2
end

if ARGV[1] ~= '' then
  -- A plain SET replaces a key of any type.
  call('SET', KEYS[1], ARGV[1], 'EX', lifetime)
end
return {now, ARGV[1], ARGV[1] ~= '' and refused == 0 and 1 or 0, refused}
