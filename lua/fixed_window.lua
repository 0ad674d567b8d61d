-- The fixed window: twin of src/limit/fixed_window.rs; prelude.lua describes the functions.
--
-- Record: one packed string, little endian: reset_at (6 bytes, ms), count (4 bytes). One value, so that
-- neither can be evicted without the other. Anything else, and a record past its reset_at, is read as a new
-- caller's record: the TTL only cleans up.
algorithms.fixed_window = function()
  local function read(raw, now, limit, window)
    local reset, count, dirty = 0, 0, false
    if raw and #raw == 10 then reset, count = struct.unpack('<I6I4', raw) end
    -- No charge can have set this end: the clock was set back, and the window moves back with it.
    if reset > now + window + 5000 then reset, dirty = now + window, true end
    local live = reset > now
    local remaining = live and limit - count or limit
    return {
      limit = limit, window = window, now = now, live = live, count = count, reset_at = reset,
      remaining = remaining > 0 and remaining or 0, dirty = dirty,
    }
  end

  local function decide(reading, cost)
    local used, reset = 0, reading.now
    if reading.live then used, reset = reading.count, reading.reset_at end
    return used, reset, (cost <= reading.remaining or cost > reading.limit) and -1 or reset
  end

  local function charge(reading, cost)
    if cost == 0 then return decide(reading, 0) end
    if not reading.live then
      reading.live, reading.count, reading.reset_at = true, 0, reading.now + reading.window
    end
    local count = reading.count + cost
    if count > 4294967295 then count = 4294967295 end
    local left = reading.limit - count
    reading.count, reading.remaining, reading.dirty = count, left > 0 and left or 0, true
    return count, reading.reset_at
  end

  local function refund(reading, charged_at, cost)
    local reset = reading.reset_at
    if not reading.live or charged_at < reset - reading.window or charged_at >= reset then return end
    local count = reading.count - cost
    if count < 0 then count = 0 end
    local left = reading.limit - count
    reading.count, reading.remaining, reading.dirty = count, left > 0 and left or 0, true
  end

  local function write(reading)
    return struct.pack('<I6I4', reading.reset_at, reading.count), reading.reset_at
  end

  local function spendable_until(reading)
    return reading.reset_at
  end

  return {
    read = read, decide = decide, charge = charge, refund = refund, write = write,
    spendable_until = spendable_until,
  }
end
