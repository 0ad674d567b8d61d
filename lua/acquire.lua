-- Acquires a batch of tokens from one record: refunds the unspent tokens of an earlier grant, then charges
-- `needed`, or what is left if that is less, and a share of the rest. Twin of src/limit/acquire.rs.
--
-- KEYS[1]   the record
-- ARGV[1]   now in ms; 0: this server's clock (only tests pass another)
-- ARGV[2+]  algorithm (its tag), minimum (tokens), quota, window (ms), resolution, option (see
--           prelude.lua), needed (tokens, at least `minimum`), extra (tokens wanted beyond `needed`),
--           extra_divisor (at most the tokens left beyond `needed`, divided by this, are extra), returned
--           (tokens to refund), charged_at (ms: when those were charged)
-- Returns   a flat array of integers: now (ms), admitted (1 or 0), remaining, used, reset_at (ms), retry_at
--           for `minimum` (ms; -1: all of `needed` was granted, or minimum above the quota), wait (0),
--           granted (tokens), spendable_until (ms: they may not be spent from then on; 0: nothing granted)
local algorithm, view = read(KEYS[1], 2)
local minimum, needed, returned = ARGV[3] + 0, ARGV[8] + 0, ARGV[11] + 0
if returned > 0 then algorithm.refund(view, ARGV[12] + 0, returned) end

local left, tokens = view.remaining, 0
if minimum <= left and left < needed then
  tokens = left
elseif minimum <= left then
  local rest, extra, divisor = left - needed, ARGV[9] + 0, ARGV[10] + 0
  local max = (rest - rest % divisor) / divisor
  tokens = needed + (extra < max and extra or max)
end

local used, reset, retry = 0, 0, -1
if tokens > 0 then
  used, reset = algorithm.charge(view, tokens, minimum)
  local _
  if tokens < needed then _, _, retry = algorithm.decide(view, minimum) end
else
  used, reset, retry = algorithm.decide(view, minimum)
end
if view.dirty then write(KEYS[1], algorithm, view) end
return {
  now, minimum <= left and 1 or 0, view.remaining, used, reset, retry, 0, tokens,
  tokens > 0 and algorithm.spendable_until(view) or 0,
}
