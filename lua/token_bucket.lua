-- The token bucket: twin of src/limit/token_bucket.rs and of its record, src/limit/gcra.rs; prelude.lua
-- describes the functions.
--
-- Record: one packed string, little endian: updated_at (6 bytes, ms), reset_at (6 bytes, ms), at (6 bytes,
-- ms), fraction (4 bytes), rate (4 bytes). The TAT (theoretical arrival time), at which the bucket is full
-- again, is `at + fraction / rate` ms after the epoch, where rate is the quota of the last charge. Anything
-- else is read as a new caller's record.
--
-- The backlog is counted in units of 1 / rate ms; a token is `window` units. They are whole numbers below
-- 2^53 (the configuration keeps limit * window below 2^52), so nothing is rounded.
algorithms.token_bucket = function()
  local function set_usage(view, backlog)
    local used = (backlog + (-backlog) % view.window) / view.window
    local left = view.limit - used
    view.backlog, view.used, view.remaining = backlog, used, left > 0 and left or 0
  end

  local function read(raw, now, limit, window)
    local updated_at, reset, at, fraction, rate, dirty = 0, 0, 0, 0, 0, false
    if raw and #raw == 26 then
      updated_at, reset, at, fraction, rate = struct.unpack('<I6I6I6I4I4', raw)
      -- If the clock steps back by at most 5 s, the record's time stands still. After a larger step, the
      -- record moves back with the clock.
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
    local view = {
      limit = limit, window = window, now = now, updated_at = updated_at, reset_at = reset, at = at,
      fraction = fraction, rate = rate, dirty = dirty,
    }
    set_usage(view, at >= now and (at - now) * rate + fraction or 0)
    return view
  end

  local function decide(view, cost)
    local now, reset, retry = view.now, view.reset_at, -1
    if cost > view.remaining and cost <= view.limit then
      local over = view.backlog - (view.limit - cost) * view.window
      retry = now + (over + (-over) % view.rate) / view.rate
    end
    return view.used, reset > now and reset or now, retry
  end

  -- Sets the TAT to `backlog` units of 1 / rate ms after now.
  local function set_backlog(view, backlog, rate)
    local fraction = backlog % rate
    view.at, view.fraction = view.now + (backlog - fraction) / rate, fraction
    view.rate, view.updated_at, view.dirty = rate, view.now, true
    set_usage(view, backlog)
  end

  local function charge(view, cost)
    if cost == 0 then return decide(view, 0) end
    -- The backlog grows only as far as it can be counted exactly, and to at most 2^47 ms.
    local max, backlog = view.limit * 140737488355328, view.backlog
    if max > 9007130535264256 then max = 9007130535264256 end
    if backlog > max then backlog = max end
    local room = max - backlog
    room = (room - room % view.window) / view.window
    if cost > room then cost = room end
    set_backlog(view, backlog + cost * view.window, view.limit)
    local tat = view.at + (view.fraction > 0 and 1 or 0)
    if tat > view.reset_at then view.reset_at = tat end
    return decide(view, 0)
  end

  local function refund(view, charged_at, cost)
    if view.backlog == 0 or view.now >= charged_at + view.window then return end
    local backlog = view.backlog - cost * view.window
    set_backlog(view, backlog > 0 and backlog or 0, view.rate)
  end

  local function write(view)
    local updated_at, reset, at = view.updated_at, view.reset_at, view.at
    return struct.pack('<I6I6I6I4I4', updated_at, reset, at, view.fraction, view.rate), reset
  end

  return {read = read, decide = decide, charge = charge, refund = refund, write = write}
end
