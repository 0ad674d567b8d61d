-- The token bucket: twin of src/limit/token_bucket.rs and of the record in src/limit/horizon.rs,
-- function for function. What an algorithm has to have is said in sliding_window.lua.
--
-- Record: one packed string, little endian: seen (6 bytes, ms), reset_at (6 bytes, ms), at (6 bytes, ms),
-- fraction (4 bytes), rate (4 bytes). The bucket is full again at + fraction / rate ms after the epoch,
-- where rate is the quota of the last charge. Anything else is read as a caller never seen.
--
-- What is owed is counted in units of 1 / rate ms, of which a token is `window`: whole numbers below
-- 2^53 (the configuration keeps limit * window below 2^52), so nothing is rounded.
algorithms.token_bucket = function()
  local function set(reading, owed)
    local used = (owed + (-owed) % reading.window) / reading.window
    local left = reading.limit - used
    reading.owed, reading.used, reading.remaining = owed, used, left > 0 and left or 0
  end

  local function read(raw, now, limit, window)
    local seen, reset, at, fraction, rate, dirty = 0, 0, 0, 0, 0, false
    if raw and #raw == 26 then
      seen, reset, at, fraction, rate = struct.unpack('<I6I6I6I4I4', raw)
      -- A record's time never runs backwards; one whose clock was set back far moves with it.
      if seen - now > 5000 then
        at, reset = at - (seen - now), reset - (seen - now)
        if at < 0 then at = 0 end
        if reset < 0 then reset = 0 end
        seen, dirty = now, true
      elseif seen > now then
        now = seen
      end
      -- More than any charge can have left: a caller never seen.
      if rate == 0 or (at - now) * rate + fraction > 9007130535264256 then
        seen, reset, at, fraction, rate = 0, 0, 0, 0, 0
      end
    end
    local reading = {
      limit = limit, window = window, now = now, seen = seen, reset_at = reset, at = at,
      fraction = fraction, rate = rate, dirty = dirty,
    }
    set(reading, at >= now and (at - now) * rate + fraction or 0)
    return reading
  end

  local function tell(reading, cost)
    local now, reset, retry = reading.now, reading.reset_at, -1
    if cost > reading.remaining and cost <= reading.limit then
      local over = reading.owed - (reading.limit - cost) * reading.window
      retry = now + (over + (-over) % reading.rate) / reading.rate
    end
    return reading.used, reset > now and reset or now, retry
  end

  -- Puts the point at which the bucket is full so many units of 1 / rate ms after now.
  local function put(reading, owed, rate)
    local fraction = owed % rate
    reading.at, reading.fraction = reading.now + (owed - fraction) / rate, fraction
    reading.rate, reading.seen, reading.dirty = rate, reading.now, true
    set(reading, owed)
  end

  local function charge(reading, cost)
    if cost == 0 then return tell(reading, 0) end
    -- As far as it can be counted exactly, and 2^47 ms ahead at most.
    local most, owed = reading.limit * 140737488355328, reading.owed
    if most > 9007130535264256 then most = 9007130535264256 end
    if owed > most then owed = most end
    local room = most - owed
    room = (room - room % reading.window) / reading.window
    if cost > room then cost = room end
    put(reading, owed + cost * reading.window, reading.limit)
    local full = reading.at + (reading.fraction > 0 and 1 or 0)
    if full > reading.reset_at then reading.reset_at = full end
    return tell(reading, 0)
  end

  local function refund(reading, charged_at, cost)
    if reading.owed == 0 or reading.now >= charged_at + reading.window then return end
    local owed = reading.owed - cost * reading.window
    put(reading, owed > 0 and owed or 0, reading.rate)
  end

  local function write(reading)
    local seen, reset, at = reading.seen, reading.reset_at, reading.at
    return struct.pack('<I6I6I6I4I4', seen, reset, at, reading.fraction, reading.rate), reset
  end

  return {read = read, tell = tell, charge = charge, refund = refund, write = write}
end
