-- Requests in flight: twin of src/limit/concurrency.rs, function for function. What an algorithm has to
-- have is said in sliding_window.lua.
--
-- Record: one packed string, little endian: reset_at (6 bytes, ms), when the leases end that began anew
-- because the clock was set back (6 bytes, ms), the slots on all leases (4 bytes), then the leases, the
-- first to end first: its end (6 bytes, ms) and its slots (4 bytes). Anything else is read as a caller
-- never seen.
--
-- The leases stay packed: a call unpacks those that have ended, and what it finds by halving.
algorithms.concurrency = function()
  local number, sub = struct.unpack, string.sub

  -- When a lease ends that begins at `at`.
  local function lease_end(window, at)
    local step = (window + (-window) % 64) / 64
    local ends = at + window
    return ends + (-ends) % step
  end

  -- The end and the slots of lease `i`, from 0.
  local function lease(reading, i)
    return number('<I6I4', reading.leases, 10 * i + 1)
  end

  -- The first lease that ends after `at`; their number, if none does.
  local function after(reading, at)
    local low, high = 0, reading.n
    -- Most often the last ends then.
    if high > 0 and number('<I6', reading.leases, 10 * high - 9) <= at then return high end
    while low < high do
      local middle = (low + high - (low + high) % 2) / 2
      if number('<I6', reading.leases, 10 * middle + 1) > at then high = middle else low = middle + 1 end
    end
    return low
  end

  -- Puts `count` slots until `ends` in the place of leases `from` to before `to`; none, if it is 0.
  local function replace(reading, from, to, ends, count)
    local leases = reading.leases
    local new = count > 0 and struct.pack('<I6I4', ends, count) or ''
    reading.leases = sub(leases, 1, 10 * from) .. new .. sub(leases, 10 * to + 1)
    reading.n = #reading.leases / 10
  end

  local function use(reading, used)
    if used < 0 then used = 0 end
    local left = reading.limit - used
    reading.used, reading.remaining = used, left > 0 and left or 0
  end

  -- When enough leases will have ended for `cost`, if nothing else happens; -1: never.
  local function retry_at(reading, cost)
    local room = reading.limit - cost
    if room < 0 then return -1 end
    local at, used, i = reading.now, reading.used, reading.first
    while used > room and i < reading.n do
      local ends, count = lease(reading, i)
      at, used, i = ends, used - count, i + 1
    end
    return at
  end

  local function read(raw, now, limit, window)
    local reading = {
      limit = limit, window = window, now = now, ends = lease_end(window, now), reset_at = 0, renewed = 0,
      total = 0, leases = '', n = 0, first = 0, dirty = false,
    }
    if raw and #raw % 10 == 6 and #raw > 6 then
      reading.reset_at, reading.renewed, reading.total = number('<I6I6I4', raw)
      reading.leases, reading.n = sub(raw, 17), (#raw - 16) / 10
    end
    -- The clock was set back: all leases begin anew.
    local ends = reading.ends
    if reading.reset_at > lease_end(window, now + (window - window % 4) / 4) then
      reading.reset_at, reading.renewed, reading.dirty = ends, ends, true
      replace(reading, 0, reading.n, ends, reading.total)
    end
    local used, first = reading.total, 0
    while first < reading.n do
      local over, count = lease(reading, first)
      if over > now then break end
      used, first = used - count, first + 1
    end
    reading.first = first
    use(reading, used)
    return reading
  end

  local function tell(reading, cost)
    local now, reset = reading.now, reading.reset_at
    return reading.used, reset > now and reset or now,
      cost <= reading.remaining and -1 or retry_at(reading, cost)
  end

  local function charge(reading, cost)
    local used = reading.used
    if cost > 4294967295 - used then cost = 4294967295 - used end
    if cost == 0 then return tell(reading, 0) end
    if reading.first > 0 then replace(reading, 0, reading.first, 0, 0) end
    reading.first = 0
    local ends = reading.ends
    local to = after(reading, ends)
    local from, count = to, cost
    if to > 0 then
      local last, more = lease(reading, to - 1)
      if last == ends then from, count = to - 1, more + cost end
    end
    replace(reading, from, to, ends, count)
    use(reading, used + cost)
    reading.total, reading.dirty = reading.used, true
    if ends > reading.reset_at then reading.reset_at = ends end
    return tell(reading, 0)
  end

  -- Takes at most `cost` slots off the leases that end at `ends`, if they last; tells how many.
  local function take(reading, ends, cost)
    local at = after(reading, ends) - 1
    if at < reading.first then return 0 end
    local last, count = lease(reading, at)
    if last ~= ends then return 0 end
    local taken = cost < count and cost or count
    replace(reading, at, at + 1, ends, count - taken)
    use(reading, reading.used - taken)
    reading.total, reading.dirty = reading.total - taken, true
    return taken
  end

  local function refund(reading, charged_at, cost)
    local ends = lease_end(reading.window, charged_at)
    local left = cost - take(reading, ends, cost)
    -- Its own step may be none by this clock, or that of another's lease.
    if left > 0 and ends > reading.now then take(reading, reading.renewed, left) end
  end

  local function write(reading)
    return struct.pack('<I6I6I4', reading.reset_at, reading.renewed, reading.total) .. reading.leases,
      reading.reset_at
  end

  return {read = read, tell = tell, charge = charge, refund = refund, write = write}
end
