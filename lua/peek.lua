-- Decides on charges without making them, each one independently. It writes nothing, so a replica can run it.
--
-- KEYS[i]   the record of limit i; all share a hash tag, or are on one server
-- ARGV[1]   now in ms, which only tests pass; 0: this server's clock
-- ARGV[2+]  six values for each limit, in the order of KEYS, as for `charge`
-- Returns   a flat array of integers, as `charge` does: now (ms), then six for each limit:
--             admitted (1 or 0), remaining, used, reset_at (ms), retry_at (ms; -1: admitted, or cost above
--             the quota), wait (ms)
local reply = {now}
for i, key in ipairs(KEYS) do
  local first = i * 6 - 4
  local algorithm, view = read(key, first)
  local cost = ARGV[first + 1] + 0
  local used, reset, retry = algorithm.decide(view, cost)
  local admitted, wait = fits(algorithm, view, cost)
  reply[first], reply[first + 1], reply[first + 2] = admitted and 1 or 0, view.remaining, used
  reply[first + 3], reply[first + 4], reply[first + 5] = reset, admitted and -1 or retry, wait
end
return reply
