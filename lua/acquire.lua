-- Takes tokens ahead: gives back what was not spent of an earlier grant, then charges what is needed,
-- or what is left of it, and a share of the rest. All limits of one request, or none. Twin of
-- src/limit/acquire.rs.
--
-- KEYS[i]   the record of limit i, each once. All share a hash tag, or live on one server.
-- ARGV[1]   now in ms; 0: this server's own clock (tests alone pass another).
-- ARGV[2+]  twelve values a limit, in the order of KEYS:
--             algorithm (its tag), least (tokens), quota, window in ms, resolution, option (see the
--             algorithms), needed (tokens, at least `least`), extra (tokens wanted beyond), share (one in
--             so many of what is left then, at most, is extra), back (tokens given back), charged_at (ms:
--             when those were charged), whether it may refuse (1 or 0)
-- Returns   one flat array of integers: now, then eight a limit:
--             admitted (1 or 0), remaining, used, reset_at (ms), retry_at for `least` (ms; -1: all that is
--             needed was granted, or never), wait (ms), granted (tokens), end (ms: none of them may be
--             spent from then on; 0: nothing is granted ahead)
local offers, all = {}, true
for i, key in ipairs(KEYS) do
  local at = i * 12 - 10
  local algorithm, reading = read(key, at)
  local least, needed, back = ARGV[at + 1] + 0, ARGV[at + 6] + 0, ARGV[at + 9] + 0
  if back > 0 then algorithm.refund(reading, ARGV[at + 10] + 0, back) end
  local left, tokens = reading.remaining, 0
  local admitted = least <= left
  if admitted and left < needed then
    tokens = left
  elseif admitted then
    local rest, extra, share = left - needed, ARGV[at + 7] + 0, ARGV[at + 8] + 0
    local most = (rest - rest % share) / share
    tokens = needed + (extra < most and extra or most)
  end
  offers[i] = {
    algorithm = algorithm, reading = reading, least = least, needed = needed, tokens = tokens,
    admitted = admitted,
  }
  all = all and (admitted or ARGV[at + 11] == '0')
end

local reply = {now}
for i, key in ipairs(KEYS) do
  local offer = offers[i]
  local algorithm, reading, least = offer.algorithm, offer.reading, offer.least
  local tokens = all and offer.tokens or 0
  local wait = offer.admitted and least > 0 and reading.wait or 0
  local used, reset, retry
  if tokens > 0 then
    used, reset = algorithm.charge(reading, tokens, least)
    retry = -1
    if tokens < offer.needed then
      local _
      _, _, retry = algorithm.tell(reading, least)
    end
  else
    used, reset, retry = algorithm.tell(reading, least)
  end
  if reading.dirty then write(key, algorithm, reading) end
  local at = i * 8 - 6
  reply[at], reply[at + 1], reply[at + 2] = offer.admitted and 1 or 0, reading.remaining, used
  reply[at + 3], reply[at + 4], reply[at + 5] = reset, retry, wait
  reply[at + 6], reply[at + 7] = tokens,
    tokens > 0 and algorithm.spendable and algorithm.spendable(reading) or 0
end
return reply
