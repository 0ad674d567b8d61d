-- The leaky bucket: twin of src/limit/leaky_bucket.rs and of the record in src/limit/horizon.rs,
-- function for function. What an algorithm has to have is said in sliding_window.lua.
--
-- Record: one packed string, little endian: seen (6 bytes, ms), reset_at (6 bytes, ms), at (6 bytes, ms),
-- fraction (4 bytes), rate (4 bytes). The next free slot is at + fraction / rate ms after the epoch,
-- where rate is the quota of the last charge. Anything else is read as a caller never seen.
--
-- Time is counted in units of 1 / rate ms, of which a slot is `window`: whole numbers below 2^53 (the
-- configuration keeps limit times max_wait, and times window, below 2^52), so nothing is rounded.
algorithms.leaky_bucket = function()
  -- `limit` is the number of slots within max_wait; `patience` is max_wait in units.
  local function set(reading, ahead)
    local window, limit, left = reading.window, reading.limit, reading.patience - ahead
    -- Slots that are free; below 0 by those that were overdrawn.
    local free = (left - left % window) / window + 1
    reading.ahead, reading.used, reading.remaining = ahead, limit - free, free > 0 and free or 0
    reading.wait = (ahead + (-ahead) % reading.quota) / reading.quota
  end

  local function read(raw, now, quota, window, _, max_wait)
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
    local patience = max_wait * quota
    local reading = {
      limit = (patience - patience % window) / window + 1, quota = quota, window = window, now = now,
      patience = patience, seen = seen, reset_at = reset, at = at, fraction = fraction, rate = rate,
      dirty = dirty,
    }
    local ahead = 0
    if rate == quota then
      if at >= now then ahead = (at - now) * rate + fraction end
    else
      -- Another quota: what does not divide evenly is rounded up to a whole ms, once.
      local up = at + (fraction > 0 and 1 or 0)
      if up > now then ahead = (up - now) * quota end
      if ahead > 9007130535264256 then ahead = 9007130535264256 end
    end
    set(reading, ahead)
    return reading
  end

  local function tell(reading, cost)
    local now, reset, retry = reading.now, reading.reset_at, -1
    if cost > reading.remaining then
      local last = reading.patience - (cost > 0 and cost - 1 or 0) * reading.window
      if last >= 0 then
        local over = reading.ahead - last
        retry = now + (over + (-over) % reading.quota) / reading.quota
      end
    end
    return reading.used, reset > now and reset or now, retry
  end

  -- Puts the next free slot so many units after now.
  local function put(reading, ahead)
    local fraction, rate = ahead % reading.quota, reading.quota
    reading.at, reading.fraction = reading.now + (ahead - fraction) / rate, fraction
    reading.rate, reading.seen, reading.dirty = rate, reading.now, true
    set(reading, ahead)
  end

  local function charge(reading, cost)
    if cost == 0 then return tell(reading, 0) end
    -- As far as it can be counted exactly, and 2^47 ms ahead at most.
    local most, ahead = reading.quota * 140737488355328, reading.ahead
    if most > 9007130535264256 then most = 9007130535264256 end
    if ahead > most then ahead = most end
    local room = most - ahead
    room = (room - room % reading.window) / reading.window
    if cost > room then cost = room end
    put(reading, ahead + cost * reading.window)
    local empty = reading.at + (reading.fraction > 0 and 1 or 0)
    if empty > reading.reset_at then reading.reset_at = empty end
    return tell(reading, 0)
  end

  -- Gives back the slots of which the first begins at `slot`, if none is taken after them.
  local function refund(reading, slot, cost)
    local most, given = 9007130535264256, cost * reading.window
    local before = (slot - reading.now) * reading.quota
    if before > most then before = most elseif before < -most then before = -most end
    local last = before + (given > most and most or given)
    if reading.ahead == 0 or reading.ahead > last then return end
    local ahead = reading.ahead - given
    put(reading, ahead > 0 and ahead or 0)
  end

  local function write(reading)
    local seen, reset, at = reading.seen, reading.reset_at, reading.at
    return struct.pack('<I6I6I6I4I4', seen, reset, at, reading.fraction, reading.rate), reset
  end

  return {read = read, tell = tell, charge = charge, refund = refund, write = write}
end
