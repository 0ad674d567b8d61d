-- Charges all limits of one request, or none. One call reads the clock once for all of them.
--
-- KEYS[i]   the record of limit i; all share a hash tag, or are on one server
-- ARGV[1]   now in ms, which only tests pass; 0: this server's clock
-- ARGV[2+]  six values for each limit, in the order of KEYS:
--             algorithm (its tag), cost, quota, window (ms), resolution, option (see prelude.lua);
--           then, if there is more than one limit, one value for each: 1 if it may refuse, else 0
-- Returns   a flat array of integers: now (ms), then six for each limit:
--             admitted (1 or 0), remaining, used, reset_at (ms), retry_at (ms; -1: admitted, or cost above
--             the quota), wait (ms)
--
-- Two charges of one request on the same record are decided in order, the second on top of the first.

-- Most requests have one limit, for which the tables below are not needed.
if #KEYS == 1 then
  local algorithm, view = read(KEYS[1], 2)
  local cost = ARGV[3] + 0
  local admitted, wait = fits(algorithm, view, cost)
  local used, reset, retry = (admitted and algorithm.charge or algorithm.decide)(view, cost)
  if view.dirty then write(KEYS[1], algorithm, view) end
  return {now, admitted and 1 or 0, view.remaining, used, reset, admitted and -1 or retry, wait}
end

-- Reads each record once, then decides: `total` is the sum of the request's charges on it so far.
local records, charges, all = {}, {}, true
for i, key in ipairs(KEYS) do
  local record = records[key]
  if not record then
    local algorithm, view = read(key, i * 6 - 4)
    record = {algorithm = algorithm, total = 0, view = view}
    records[key] = record
  end
  local cost = ARGV[i * 6 - 3] + 0
  local total = record.total + cost
  -- No quota is larger, so a larger total needs no exact number.
  if total > 9007199254740992 then total = 9007199254740992 end
  record.total = total
  local admitted = fits(record.algorithm, record.view, total)
  charges[i] = {record = record, cost = cost, total = total, admitted = admitted}
  all = all and (admitted or ARGV[1 + #KEYS * 6 + i] == '0')
end

local reply = {now}
for i, charge in ipairs(charges) do
  local algorithm, view = charge.record.algorithm, charge.record.view
  local admitted = charge.admitted
  local charged = all and admitted
  local cost = charged and charge.cost or charge.total
  local _, wait = fits(algorithm, view, cost)
  if not admitted then wait = 0 end
  local used, reset, retry = (charged and algorithm.charge or algorithm.decide)(view, cost)
  if admitted then retry = -1 end
  local first = i * 6 - 4
  reply[first], reply[first + 1], reply[first + 2] = admitted and 1 or 0, view.remaining, used
  reply[first + 3], reply[first + 4], reply[first + 5] = reset, retry, wait
end

for key, record in pairs(records) do
  if record.view.dirty then write(key, record.algorithm, record.view) end
end
return reply
