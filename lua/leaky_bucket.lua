-- The leaky bucket: twin of src/limit/leaky_bucket.rs and of the record in src/limit/horizon.rs,
-- function for function. What an algorithm has to have is said in sliding_window.lua.
--
-- Record: one packed string, little endian: seen (6 bytes, ms), reset_at (6 bytes, ms), at (6 bytes, ms),
-- fraction (4 bytes), rate (4 bytes), then what holes.lua says. The slots that are taken end at
-- + fraction / rate ms after the epoch, where rate is the quota of the last charge. Anything else is read
-- as a caller never seen.
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
    if reading.holes then
      local more = reading.library.free(reading.holes, reading.patience, reading.quota, window)
      reading.used, reading.remaining = reading.used - more, reading.remaining + more
    end
  end

  local function read(raw, now, quota, window, _, max_wait)
    local seen, reset, at, fraction, rate, dirty, holes = 0, 0, 0, 0, 0, false, false
    if raw and #raw >= 26 and (#raw - 26) % 14 == 0 then
      seen, reset, at, fraction, rate = struct.unpack('<I6I6I6I4I4', raw)
      holes = #raw > 26
      -- A record's time never runs backwards; one whose clock was set back far moves with it.
      if seen - now > 5000 then
        at, reset = at - (seen - now), reset - (seen - now)
        if at < 0 then at = 0 end
        if reset < 0 then reset = 0 end
        seen, dirty, holes = now, true, false
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
      dirty = dirty, holes = false, library = false,
    }
    local ahead = 0
    if rate == quota then
      if at >= now then ahead = (at - now) * rate + fraction end
      if holes and ahead > 0 then
        reading.library = algorithms.holes()
        reading.holes = reading.library.read(raw, 27, now, rate, window, ahead)
      end
    else
      -- Another quota: what does not divide evenly is rounded up to a whole ms, once.
      local up = at + (fraction > 0 and 1 or 0)
      if up > now then ahead = (up - now) * quota end
      if ahead > 9007130535264256 then ahead = 9007130535264256 end
    end
    set(reading, ahead)
    return reading
  end

  -- Where `cost` free slots in a row begin, if some do before those that are taken end; `latest` is what
  -- the first of them must not begin after.
  local function hole(reading, cost, latest)
    if not reading.holes then return end
    return reading.library.first(reading.holes, cost, latest, reading.quota, reading.window)
  end

  -- What the first of `cost` slots must not begin after, for the last of them to be within max_wait.
  local function latest(reading, cost)
    return reading.patience - (cost > 0 and cost - 1 or 0) * reading.window
  end

  -- How long a request of `cost` waits, in ms; nil if it does not fit.
  local function wait(reading, cost)
    local last = latest(reading, cost)
    local begins = hole(reading, cost, last)
    if not begins or begins > last then begins = reading.ahead end
    if begins <= last then return (begins + (-begins) % reading.quota) / reading.quota end
  end

  local function tell(reading, cost)
    local now, reset, retry = reading.now, reading.reset_at, -1
    if cost > 0 then
      local last = latest(reading, cost)
      if last >= 0 then
        local over = (hole(reading, cost, last) or reading.ahead) - last
        if over > 0 then retry = now + (over + (-over) % reading.quota) / reading.quota end
      end
    end
    return reading.used, reset > now and reset or now, retry
  end

  -- Puts the end of what is taken so many units after now.
  local function put(reading, ahead)
    local fraction, rate = ahead % reading.quota, reading.quota
    reading.at, reading.fraction = reading.now + (ahead - fraction) / rate, fraction
    reading.rate, reading.seen, reading.dirty = rate, reading.now, true
    if ahead == 0 then reading.holes = false end
    set(reading, ahead)
  end

  local function charge(reading, cost)
    if cost == 0 then return tell(reading, 0) end
    local last, ahead = latest(reading, cost), reading.ahead
    local begins = hole(reading, cost, last)
    if begins and begins <= last then
      reading.library.take(reading.holes, begins, cost, reading.window)
    else
      -- As far as it can be counted exactly, and 2^47 ms ahead at most.
      local most = reading.quota * 140737488355328
      if most > 9007130535264256 then most = 9007130535264256 end
      if ahead > most then ahead = most end
      local room = most - ahead
      room = (room - room % reading.window) / reading.window
      if cost > room then cost = room end
      ahead = ahead + cost * reading.window
    end
    put(reading, ahead)
    local empty = reading.at + (reading.fraction > 0 and 1 or 0)
    if empty > reading.reset_at then reading.reset_at = empty end
    return tell(reading, 0)
  end

  -- Frees `cost` slots of which the first is released at `slot`, if they are taken and not over.
  local function refund(reading, slot, cost)
    local most, rate, window = 9007130535264256, reading.quota, reading.window
    local ahead, given, released = reading.ahead, cost * window, (slot - reading.now) * rate
    if ahead == 0 or cost == 0 or given > most then return end
    if released > most / 2 or released < -most / 2 then return end
    local same, last = reading.rate == rate, ahead - given
    local begins = last
    -- Another quota's slots were rounded up to a ms: of them only the last can be told.
    if last > (same and released or released + rate - 1) then
      -- The latest that is released at that ms.
      local back = ahead - released
      if not same or back > most then return end
      begins = ahead - (back + (-back) % window)
    end
    local holes, library = reading.holes, reading.library
    if holes then begins = library.place(holes, begins, given, window) end
    if begins <= released - rate then return end
    if begins == last then
      if holes then last = library.absorb(holes, last, window) end
      put(reading, last > 0 and last or 0)
    elseif begins + given > 0 then
      library = library or algorithms.holes()
      reading.library, reading.holes = library, holes or {}
      library.add(reading.holes, begins, cost, window)
      put(reading, ahead)
    end
  end

  local function write(reading)
    local seen, reset, at = reading.seen, reading.reset_at, reading.at
    local raw = struct.pack('<I6I6I6I4I4', seen, reset, at, reading.fraction, reading.rate)
    if reading.holes then
      raw = raw .. reading.library.write(reading.holes, reading.now, reading.quota)
    end
    return raw, reset
  end

  return {read = read, tell = tell, charge = charge, refund = refund, write = write, wait = wait}
end
