-- Takes tokens ahead from one record: gives back what was not spent of an earlier grant, then charges
-- what is needed, or what is left of it, and a share of the rest. Twin of src/limit/acquire.rs.
--
-- KEYS[1]   the record
-- ARGV[1]   now in ms; 0: this server's own clock (tests alone pass another)
-- ARGV[2+]  algorithm (its tag), least (tokens), quota, window in ms, resolution, option (see the
--           algorithms), needed (tokens, at least `least`), extra (tokens wanted beyond), share (one in so
--           many of what is left then, at most, is extra), back (tokens given back), charged_at (ms: when
--           those were charged)
-- Returns   one flat array of integers: now, admitted (1 or 0), remaining, used, reset_at (ms), retry_at
--           for `least` (ms; -1: all that is needed was granted, or never), wait (0), granted (tokens),
--           end (ms: none of them may be spent from then on; 0: nothing was granted)
local algorithm, reading = read(KEYS[1], 2)
local least, needed, back = ARGV[3] + 0, ARGV[8] + 0, ARGV[11] + 0
if back > 0 then algorithm.refund(reading, ARGV[12] + 0, back) end

local left, tokens = reading.remaining, 0
if least <= left and left < needed then
  tokens = left
elseif least <= left then
  local rest, extra, share = left - needed, ARGV[9] + 0, ARGV[10] + 0
  local most = (rest - rest % share) / share
  tokens = needed + (extra < most and extra or most)
end

local used, reset, retry = 0, 0, -1
if tokens > 0 then
  used, reset = algorithm.charge(reading, tokens, least)
  local _
  if tokens < needed then _, _, retry = algorithm.tell(reading, least) end
else
  used, reset, retry = algorithm.tell(reading, least)
end
if reading.dirty then write(KEYS[1], algorithm, reading) end
return {
  now, least <= left and 1 or 0, reading.remaining, used, reset, retry, 0, tokens,
  tokens > 0 and algorithm.spendable(reading) or 0,
}
