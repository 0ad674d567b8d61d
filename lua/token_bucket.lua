-- The token bucket: twin of src/limit/token_bucket.rs, and of src/limit/gcra.rs, its record; prelude.lua
-- describes the functions.
--
-- Record: one packed string, little endian: updated_at (6 bytes, ms), reset_at (6 bytes, ms), at (6 bytes,
-- ms), fraction (4 bytes), rate (4 bytes). The TAT (theoretical arrival time), when the bucket is full
-- again, is `at + fraction / rate` ms after the epoch, where rate is the quota of the last charge. Anything
-- else is read as a new caller's record.
--
-- The backlog is counted in units of 1 / rate ms; a token is `window` units. They are whole numbers below
-- 2^53 (the configuration keeps limit * window below 2^52), so nothing is rounded.
algorithms.token_bucket = function()
  local function set_usage(reading, backlog)
    local used = (backlog + (-backlog) % reading.window) / reading.window
    local left = reading.limit - used
    reading.backlog, reading.used, reading.remaining = backlog, used, left > 0 and left or 0
  end

  local function read(raw, now, limit, window)
    local updated_at, reset, at, fraction, rate, dirty = 0, 0, 0, 0, 0, false
    if raw and #raw == 26 then
      updated_at, reset, at, fraction, rate = struct.unpack('<I6I6I6I4I4', raw)
      -- A record's time never runs backwards, unless the clock was set back: then it moves back with the
      -- clock.
      if updated_at - now > 5000 then
        at, reset = at - (updated_at - now), reset - (updated_at - now)
        if at < 0 then at = 0 end
        if reset < 0 then reset = 0 end
        updated_at, dirty = now, true
      elseif updated_at > now then
        now = updated_at
      end
      -- No charge can leave a larger backlog: malformed, so read as a new caller's record.
      if rate == 0 or (at - now) * rate + fraction > 9007130535264256 then
        updated_at, reset, at, fraction, rate = 0, 0, 0, 0, 0
      end
    end
    local reading = {
      limit = limit, window = window, now = now, updated_at = updated_at, reset_at = reset, at = at,
      fraction = fraction, rate = rate, dirty = dirty,
    }
    set_usage(reading, at >= now and (at - now) * rate + fraction or 0)
    return reading
  end

  local function decide(reading, cost)
    local now, reset, retry = reading.now, reading.reset_at, -1
    if cost > reading.remaining and cost <= reading.limit then
      local over = reading.backlog - (reading.limit - cost) * reading.window
      retry = now + (over + (-over) % reading.rate) / reading.rate
    end
    return reading.used, reset > now and reset or now, retry
  end

  -- Sets the TAT to `backlog` units of 1 / rate ms after now.
  local function set_backlog(reading, backlog, rate)
    local fraction = backlog % rate
    reading.at, reading.fraction = reading.now + (backlog - fraction) / rate, fraction
    reading.rate, reading.updated_at, reading.dirty = rate, reading.now, true
    set_usage(reading, backlog)
  end

  local function charge(reading, cost)
    if cost == 0 then return decide(reading, 0) end
    -- The backlog grows only as far as it can be counted exactly, and to at most 2^47 ms.
    local max, backlog = reading.limit * 140737488355328, reading.backlog
    if max > 9007130535264256 then max = 9007130535264256 end
    if backlog > max then backlog = max end
    local room = max - backlog
    room = (room - room % reading.window) / reading.window
    if cost > room then cost = room end
    set_backlog(reading, backlog + cost * reading.window, reading.limit)
    local tat = reading.at + (reading.fraction > 0 and 1 or 0)
    if tat > reading.reset_at then reading.reset_at = tat end
    return decide(reading, 0)
  end

  local function refund(reading, charged_at, cost)
    if reading.backlog == 0 or reading.now >= charged_at + reading.window then return end
    local backlog = reading.backlog - cost * reading.window
    set_backlog(reading, backlog > 0 and backlog or 0, reading.rate)
  end

  local function write(reading)
    local updated_at, reset, at = reading.updated_at, reading.reset_at, reading.at
    return struct.pack('<I6I6I6I4I4', updated_at, reset, at, reading.fraction, reading.rate), reset
  end

  return {read = read, decide = decide, charge = charge, refund = refund, write = write}
end
