-- Appends tokens to a log of new tokens, unless it would become too long.
--
-- KEYS[1]  the log: a string of tokens, 8 bytes each
-- ARGV[1]  the tokens
-- ARGV[2]  the most bytes of a log
-- ARGV[3]  the TTL, in s
-- Returns  1 if the tokens were appended, else 0
--
-- A malformed log is replaced.
local call = redis.call

local kind = call('TYPE', KEYS[1]).ok
local length = kind == 'string' and call('STRLEN', KEYS[1]) or 0
if kind ~= 'none' and (kind ~= 'string' or length % 8 ~= 0) then
  call('DEL', KEYS[1])
  length = 0
end
if length + #ARGV[1] > ARGV[2] + 0 then return 0 end
call('APPEND', KEYS[1], ARGV[1])
call('EXPIRE', KEYS[1], ARGV[3])
return 1
