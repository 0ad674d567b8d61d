-- Adjusts charges: refunds, or charges without a check. Adjustments are made in order, and none is refused.
--
-- KEYS[i]   the record of adjustment i; all share a hash tag, or are on one server
-- ARGV[1]   now in ms, which only tests pass; 0: this server's clock
-- ARGV[2+]  seven values for each adjustment, in the order of KEYS:
--             algorithm (its tag), cost, quota, window (ms), resolution, option (see prelude.lua),
--             charged_at (ms, by this server's clock) to refund `cost`, -1 to charge it, or -2 to refund charges
--             whose times are not known
-- Returns   a flat array of integers, as `charge` does: now (ms), then six for each adjustment:
--             1, remaining, used, reset_at (ms), -1, 0
--
-- Without an `overdraw` of its own, an algorithm charges only up to a debt of ten quotas, whatever is reported.
local function adjust(key, argument)
  local algorithm, view = read(key, argument)
  local cost, charged_at, used, reset = ARGV[argument + 1] + 0, ARGV[argument + 6] + 0, nil, nil
  if charged_at == -1 and algorithm.overdraw then
    used, reset = algorithm.overdraw(view, cost)
  elseif charged_at == -1 then
    local most = view.limit + 10 * ARGV[argument + 2]
    if most > 9007199254740991 then most = 9007199254740991 end
    local room = most - algorithm.decide(view, 0)
    if room < 0 then room = 0 end
    used, reset = algorithm.charge(view, cost < room and cost or room)
  elseif charged_at == -2 and algorithm.release then
    algorithm.release(view, cost)
    used, reset = algorithm.decide(view, 0)
  else
    -- Without `release`, the record does not depend on when units of the current window were charged.
    algorithm.refund(view, charged_at == -2 and now or charged_at, cost)
    used, reset = algorithm.decide(view, 0)
  end
  if view.dirty then write(key, algorithm, view) end
  return view.remaining, used, reset
end

local reply = {now}
for i, key in ipairs(KEYS) do
  local argument = i * 7 - 5
  local ok, remaining, used, reset = pcall(adjust, key, argument)
  -- The failed try deletes a malformed sliding log, so a second try finds no record. Without the second try,
  -- the whole call would fail, and the gateway would repeat the earlier adjustments.
  if not ok then remaining, used, reset = adjust(key, argument) end
  local first = i * 6 - 4
  reply[first], reply[first + 1], reply[first + 2] = 1, remaining, used
  reply[first + 3], reply[first + 4], reply[first + 5] = reset, -1, 0
end
return reply
