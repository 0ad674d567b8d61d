-- Gives places of the waiting room to users whose turn it is, as long as places are free. The twin of
-- crates/throttle/src/waiting_room/state/seats.rs; lua/waiting_room.lua sets the number of free places once a second.
--
-- KEYS[1]  the state of the room: a hash
-- KEYS[2]  the users for whom places are kept: a sorted set, by the second in which each took it
-- ARGV[1]  now in ms, which only tests pass; 0: this server's clock
-- ARGV[2]  and on: the users, by hashes
-- Returns  for each user 0: no place is free, 1: it takes one, 2: it took one a few seconds ago
local call = redis.call
local floor = math.floor
local MAX_AGE, KNOWN_ELSEWHERE = 5000, 5

local function number(text)
  local value = tonumber(text or 0)
  if not value or not (value >= 0 and value < 9007199254740992) then return 0 end
  return floor(value)
end
local function digits(value) return string.format('%.0f', value) end

-- Deletes a key that another program has overwritten, so that it can be written again.
for at, key in ipairs(KEYS) do
  local kind = call('TYPE', key).ok
  if kind ~= (at == 1 and 'hash' or 'zset') and kind ~= 'none' then call('DEL', key) end
end

local now = ARGV[1] + 0
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
end
local fields = call('HMGET', KEYS[1], 'seats', 'moved_at', 'period_length', 'taken', 'refused', 'came',
  'promised')
local free, moved_at, period_length = number(fields[1]), number(fields[2]), math.max(number(fields[3]), 1)
if now - moved_at > MAX_AGE then free = 0 end

-- Adds to the last period of a text AT:NUMBER,...
local function add(text, at, new)
  text = text or ''
  if new == 0 then return text end
  local head, last, count = string.match(text, '^(.-),?(%d+):(%d+)$')
  if last and number(last) == at then text, new = head, new + number(count) end
  return text .. (text == '' and '' or ',') .. digits(at) .. ':' .. digits(new)
end

-- Subtracts from the oldest periods of such a text.
local function subtract_oldest(text, left)
  local kept = {}
  for at, count in string.gmatch(text or '', '(%d+):(%d+)') do
    local subtracted = math.min(left, number(count))
    left = left - subtracted
    if number(count) > subtracted then
      kept[#kept + 1] = at .. ':' .. digits(number(count) - subtracted)
    end
  end
  return table.concat(kept, ',')
end

local second = floor(now / 1000)
call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. digits(second - KNOWN_ELSEWHERE))
local answers, took, found_none = {}, 0, 0
for at = 2, #ARGV do
  local user, answer = ARGV[at], 0
  local since = call('ZSCORE', KEYS[2], user)
  if since and since + 0 <= second then
    answer = 2
  elseif took < free then
    took, answer = took + 1, 1
    call('ZADD', KEYS[2], digits(second), user)
  else
    found_none = found_none + 1
  end
  answers[#answers + 1] = answer
end
if took > 0 then call('EXPIRE', KEYS[2], KNOWN_ELSEWHERE * 2) end
if took + found_none > 0 and call('EXISTS', KEYS[1]) == 1 then
  call('HSET', KEYS[1], 'seats', digits(math.max(number(fields[1]) - took, 0)), 'taken', add(fields[4], second, took),
    'refused', add(fields[5], second, found_none), 'came', add(fields[6], floor(now / period_length), took),
    'promised', subtract_oldest(fields[7], took * 1000000))
end
return answers
