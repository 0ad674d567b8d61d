-- Reads the ends of logs of new tokens.
--
-- KEYS     the logs: strings of tokens, 8 bytes each
-- ARGV[1]  the most bytes to return of a log, a multiple of 8
-- ARGV[n]  from the second on: the offset up to which the gateway has read KEYS[n - 1], a multiple of 8
-- Returns  an array for each log: the offset of the first byte that follows, and the bytes. It begins after the
--          gateway's offset if more bytes have been written since, and at 0 if the log is shorter than that
local call = redis.call
local most = ARGV[1] + 0

local parts = {}
for at, key in ipairs(KEYS) do
  local length = call('TYPE', key).ok == 'string' and call('STRLEN', key) or 0
  length = length - length % 8
  local start = ARGV[at + 1] + 0
  if start > length then start = 0 end
  if length - start > most then start = length - most end
  parts[at] = {start, length > start and call('GETRANGE', key, start, length - 1) or ''}
end
return parts
