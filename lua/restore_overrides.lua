-- Writes back the overrides that a gateway knows, after Redis has lost its data.
--
-- KEYS[1]  the overrides: see `write_override`
-- ARGV[1]  the new version, as for `write_override`
-- ARGV[2]  and later: each id, followed by its text
-- Returns  1 if they were written, 0 if the hash exists. A key of another type is replaced
local call = redis.call

local kind = call('TYPE', KEYS[1]).ok
if kind == 'hash' then return 0 end
if kind ~= 'none' then call('DEL', KEYS[1]) end
call('HSET', KEYS[1], 'version', ARGV[1])
for i = 2, #ARGV, 2 do call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
