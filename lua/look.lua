-- What limits say of callers. It charges nothing, and what it reads it need not write, so that a replica
-- can run it, too. Each limit is asked by itself.
--
-- KEYS[i]   the record of limit i. All share a hash tag, or live on one server.
-- ARGV[1]   now in ms; 0: this server's own clock (tests alone pass another).
-- ARGV[2+]  six values a limit, in the order of KEYS, as `charge` has them; the cost is what is asked for
-- Returns   one flat array of integers, as `charge` does: now, then six a limit:
--             admitted (1 or 0), remaining, used, reset_at (ms), retry_at (ms; -1: admitted, or never),
--             wait (ms)
local reply = {now}
for i, key in ipairs(KEYS) do
  local at = i * 6 - 4
  local algorithm, reading = read(key, at)
  local cost = ARGV[at + 1] + 0
  local used, reset, retry = algorithm.tell(reading, cost)
  local admitted, wait = meet(algorithm, reading, cost)
  reply[at], reply[at + 1], reply[at + 2] = admitted and 1 or 0, reading.remaining, used
  reply[at + 3], reply[at + 4], reply[at + 5] = reset, admitted and -1 or retry, wait
end
return reply
