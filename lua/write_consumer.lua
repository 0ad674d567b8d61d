-- Replaces the record of a consumer or of a key, if it is still the one that was read.
--
-- KEYS[1]  the record: a string
-- ARGV[1]  the text that was read; empty: there was no record, or one of another type
-- ARGV[2]  the new text; empty: the record is deleted
-- ARGV[3]  the offset of the last byte that readers read
-- Returns  1 if the record was replaced, 0 if it is another one
local call = redis.call

local kind = call('TYPE', KEYS[1]).ok
local current = kind == 'string' and call('GETRANGE', KEYS[1], 0, ARGV[3]) or ''
if current ~= ARGV[1] then return 0 end
if ARGV[2] ~= '' then
  call('SET', KEYS[1], ARGV[2])
elseif kind ~= 'none' then
  call('DEL', KEYS[1])
end
return 1
