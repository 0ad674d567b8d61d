-- Sets or lifts one override.
--
-- KEYS[1]  the overrides: a hash with `version`, a text that each write replaces by another one, and one field for each
--          override: its id, with a JSON text
-- ARGV[1]  the id
-- ARGV[2]  the text; empty: lift the override
-- ARGV[3]  the largest number of overrides
-- ARGV[4]  the new version, which is random: it differs from all versions before, also from lost ones
-- ARGV[5]  and later: the ids of overrides that have ended, to be removed, each followed by its text
-- Returns  an array of two: 1 if the change was made, 0 if there is no such override, -1 if there are too many; and the
--          text before (empty: none)
--
-- A key of another type is replaced.
local call = redis.call

local kind = call('TYPE', KEYS[1]).ok
local before = kind == 'hash' and call('HGET', KEYS[1], ARGV[1]) or ''
local count = kind == 'hash' and call('HLEN', KEYS[1]) - call('HEXISTS', KEYS[1], 'version') or 0
local ended = {}
for i = 5, #ARGV, 2 do
  if ARGV[i] ~= ARGV[1] and kind == 'hash' and call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    ended[#ended + 1] = ARGV[i]
  end
end
if ARGV[2] == '' and before == '' then return {0, ''} end
if ARGV[2] ~= '' and before == '' and count - #ended >= ARGV[3] + 0 then return {-1, ''} end

-- DEL counts as a write, and Redis checks maxmemory only before a script's first write: so it comes only if it must.
if kind ~= 'hash' and kind ~= 'none' then call('DEL', KEYS[1]) end
call('HSET', KEYS[1], 'version', ARGV[4])
if ARGV[2] == '' then call('HDEL', KEYS[1], ARGV[1]) else call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
for _, id in ipairs(ended) do call('HDEL', KEYS[1], id) end
return {1, before}
