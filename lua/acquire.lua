-- Acquires a batch of units from one record: refunds the unspent units of an earlier grant, then charges
-- `needed` units and a share of the rest. If fewer than `needed` are left, it charges all of them, or none if
-- fewer than the minimum are left. Twin of crates/limit/src/acquire.rs.
--
-- KEYS[1]   the record
-- ARGV[1]   now in ms, which only tests pass; 0: this server's clock
-- ARGV[2+]  algorithm (its tag), minimum (units), quota, window (ms), resolution, option (see
--           prelude.lua), needed (units, at least `minimum`), extra (units wanted beyond `needed`),
--           extra_divisor (at most 1 / extra_divisor of the units left beyond `needed` are extra), returned
--           (units to refund), charged_at (ms: when the returned units were charged)
-- Returns   a flat array of integers: now (ms), admitted (1 or 0), remaining, used, reset_at (ms), retry_at
--           for `minimum` (ms; -1: all of `needed` was granted, or minimum above the quota), wait (0),
--           granted (units), spendable_until (ms: the units may be spent before it; 0: nothing granted)
local algorithm, view = read(KEYS[1], 2)
local minimum, needed, returned = ARGV[3] + 0, ARGV[8] + 0, ARGV[11] + 0
if returned > 0 then algorithm.refund(view, ARGV[12] + 0, returned) end

local left, units = view.remaining, 0
if minimum <= left and left < needed then
  units = left
elseif minimum <= left then
  local rest, extra, divisor = left - needed, ARGV[9] + 0, ARGV[10] + 0
  local max = (rest - rest % divisor) / divisor
  units = needed + (extra < max and extra or max)
end

local used, reset, retry = 0, 0, -1
if units > 0 then
  used, reset = algorithm.charge(view, units, minimum)
  local _
  if units < needed then _, _, retry = algorithm.decide(view, minimum) end
else
  used, reset, retry = algorithm.decide(view, minimum)
end
if view.dirty then write(KEYS[1], algorithm, view) end
return {
  now, minimum <= left and 1 or 0, view.remaining, used, reset, retry, 0, units,
  units > 0 and algorithm.spendable_until(view) or 0,
}
