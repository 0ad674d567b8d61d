-- Requests in flight: twin of src/limit/concurrency.rs, function for function. What an algorithm has to
-- have is said in sliding_window.lua.
--
-- Record: one packed string, little endian: reset_at (6 bytes, ms), the slots on all leases (4 bytes),
-- then the leases, the first to end first: its end (6 bytes, ms) and its slots (4 bytes). Anything else
-- is read as a caller never seen.
--
-- The leases stay packed: a call unpacks those that have ended, and what it finds by halving.
algorithms.concurrency = function()
  local number, sub = struct.unpack, string.sub

  -- The end and the slots of lease `i`, from 0.
  local function lease(reading, i)
    return number('<I6I4', reading.leases, 10 * i + 1)
  end

  -- The first lease that ends after `at`; their number, if none does.
  local function after(reading, at)
    local low, high = 0, reading.n
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
      limit = limit, window = window, now = now, reset_at = 0, total = 0, leases = '', n = 0, first = 0,
      dirty = false,
    }
    if raw and #raw >= 10 and #raw % 10 == 0 then
      reading.reset_at, reading.total = number('<I6I4', raw)
      reading.leases, reading.n = sub(raw, 11), #raw / 10 - 1
    end
    -- No lease lasts longer than one can that was taken by this clock: it was set back.
    local last = now + window + 5000
    if reading.reset_at > last then
      reading.reset_at, reading.dirty = last, true
      local from, count = after(reading, last), 0
      for i = from, reading.n - 1 do
        local _, more = lease(reading, i)
        count = count + more
      end
      replace(reading, from, reading.n, last, count)
    end
    local used, first = reading.total, 0
    while first < reading.n do
      local ends, count = lease(reading, first)
      if ends > now then break end
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
    replace(reading, 0, reading.first, 0, 0)
    reading.first = 0
    local ends = reading.now + reading.window
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

  local function refund(reading, charged_at, cost)
    local ends = charged_at + reading.window
    local at = after(reading, ends) - 1
    if at < reading.first then return end
    local last, count = lease(reading, at)
    if last ~= ends then return end
    local taken = cost < count and cost or count
    replace(reading, at, at + 1, ends, count - taken)
    use(reading, reading.used - taken)
    reading.total, reading.dirty = reading.total - taken, true
  end

  local function write(reading)
    return struct.pack('<I6I4', reading.reset_at, reading.total) .. reading.leases, reading.reset_at
  end

  return {read = read, tell = tell, charge = charge, refund = refund, write = write}
end
