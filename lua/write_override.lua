-- Sets or lifts one override.
--
-- KEYS[1]  the overrides: a hash with `version`, a whole number above 0 and below 2^53 - 1, and one field for each
--          override: its id, with a JSON text
-- ARGV[1]  the id
-- ARGV[2]  the text; empty: lift the override
-- ARGV[3]  the largest number of overrides
-- ARGV[4]  now in ms, which only tests pass; 0: this server's clock
-- ARGV[5]  and later: the ids of overrides that have ended, to be removed, each followed by its text
-- Returns  an array of three: 1 if the change was made, 0 if there is no such override, -1 if there are too many; the
--          version; and the text before (empty: none)
--
-- The version grows with each write, even if the clock is set back, and differs from the ones before a loss of the
-- data. A key of another type is replaced.
local call = redis.call

local kind = call('TYPE', KEYS[1]).ok
local text = kind == 'hash' and call('HSTRLEN', KEYS[1], 'version') <= 16 and call('HGET', KEYS[1], 'version') or ''
local current = string.find(text, '^[1-9]%d*$') and text + 0 or 0
if current >= 9007199254740991 then current = 0 end

local before = kind == 'hash' and call('HGET', KEYS[1], ARGV[1]) or ''
local count = kind == 'hash' and call('HLEN', KEYS[1]) - call('HEXISTS', KEYS[1], 'version') or 0
local ended = {}
for i = 5, #ARGV, 2 do
  if ARGV[i] ~= ARGV[1] and kind == 'hash' and call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    ended[#ended + 1] = ARGV[i]
  end
end
if ARGV[2] == '' and before == '' then return {0, current, ''} end
if ARGV[2] ~= '' and before == '' and count - #ended >= ARGV[3] + 0 then return {-1, current, ''} end

local now = ARGV[4] + 0
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
end
local new = now > current and now or current + 1

-- The first write: Redis checks maxmemory only before it. DEL counts as a write, so it comes only if it must.
if kind ~= 'hash' and kind ~= 'none' then call('DEL', KEYS[1]) end
call('HSET', KEYS[1], 'version', string.format('%.0f', new))
if ARGV[2] == '' then call('HDEL', KEYS[1], ARGV[1]) else call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
for _, id in ipairs(ended) do call('HDEL', KEYS[1], id) end
return {1, new, before}
