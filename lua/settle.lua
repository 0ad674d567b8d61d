-- Corrects what requests were charged: gives back, or charges without asking. In order, one by
-- one: a correction cannot be refused.
--
-- KEYS[i]   the record of correction i. All share a hash tag, or live on one server.
-- ARGV[1]   now in ms; 0: this server's own clock (tests alone pass another).
-- ARGV[2+]  seven values a correction, in the order of KEYS:
--             algorithm (its tag), cost, quota, window in ms, resolution, option (see the algorithms),
--             charged_at (ms, by this server's clock): gives `cost` back; -1: charges it
-- Returns   one flat array of integers, as `charge` does: now, then six a correction:
--             1, remaining, used, reset_at (ms), -1, 0
local function correct(key, at)
  local algorithm, reading = read(key, at)
  local cost, charged_at, used, reset = ARGV[at + 1] + 0, ARGV[at + 6] + 0, nil, nil
  if charged_at == -1 then
    used, reset = algorithm.charge(reading, cost)
  else
    algorithm.refund(reading, charged_at, cost)
    used, reset = algorithm.tell(reading, 0)
  end
  if reading.dirty then write(key, algorithm, reading) end
  return reading.remaining, used, reset
end

local reply = {now}
for i, key in ipairs(KEYS) do
  local from = i * 7 - 5
  local made, remaining, used, reset = pcall(correct, key, from)
  -- The first try has removed a record that was no log. A second one keeps what is made of the others from
  -- being told as failed, and then repeated.
  if not made then remaining, used, reset = correct(key, from) end
  local at = i * 6 - 4
  reply[at], reply[at + 1], reply[at + 2] = 1, remaining, used
  reply[at + 3], reply[at + 4], reply[at + 5] = reset, -1, 0
end
return reply
