-- The token bucket: twin of crates/limit/src/token_bucket.rs and of its record, crates/limit/src/gcra.rs; prelude.lua
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

  -- The first ms at which the backlog, which is larger now, is at most `rest`.
  local function empties_to(view, rest)
    local over = view.backlog - rest
    return view.now + (over + (-over) % view.rate) / view.rate
  end

  -- The first ms at which `cost` would be admitted if nothing else were charged; -1: it is admitted now, or above
  -- the quota.
  local function retry_at(view, cost)
    local room = (view.limit - cost) * view.window
    if room < 0 or view.backlog <= room then return -1 end
    return empties_to(view, room)
  end

  local function decide(view, cost)
    local used, reset, retry = view.used, view.reset_at, -1
    if reset <= view.now then
      -- The next token.
      reset = used > 0 and empties_to(view, (used - 1) * view.window) or view.now
    end
    if view.remaining == 0 then
      retry = retry_at(view, 1)
      if retry > reset then reset = retry end
    end
    if cost ~= 1 or view.remaining > 0 then retry = cost > view.remaining and retry_at(view, cost) or -1 end
    return used, reset, retry
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
    if view.rate ~= view.limit then
      -- The next token may come sooner at the new rate than was shown: the reset must not move back.
      local _, shown = decide(view, 0)
      view.reset_at = shown
    end
    -- An overdraft may be above the quota: then reset_at is for a cost of 1.
    local unit = cost > view.limit and 1 or cost
    -- The backlog grows only as far as it can be counted exactly, and to at most 2^47 ms.
    local max, backlog = view.limit * 140737488355328, view.backlog
    if max > 9007130535264256 then max = 9007130535264256 end
    if backlog > max then backlog = max end
    local room = max - backlog
    room = (room - room % view.window) / view.window
    if cost > room then cost = room end
    set_backlog(view, backlog + cost * view.window, view.limit)
    local used, reset = decide(view, 0)
    local retry = retry_at(view, unit)
    if retry > reset then reset = retry end
    view.reset_at = reset
    return used, reset
  end

  local function refund(view, charged_at, cost)
    if view.backlog == 0 or view.now >= charged_at + view.window then return end
    -- `reset_at` must not move back with the backlog from which it was computed: store it.
    local _, reset = decide(view, 0)
    view.reset_at = reset
    local backlog = view.backlog - cost * view.window
    set_backlog(view, backlog > 0 and backlog or 0, view.rate)
  end

  local function write(view)
    local updated_at, reset, at = view.updated_at, view.reset_at, view.at
    local tat = at + (view.fraction > 0 and 1 or 0)
    return struct.pack('<I6I6I6I4I4', updated_at, reset, at, view.fraction, view.rate), reset > tat and reset or tat
  end

  return {read = read, decide = decide, charge = charge, refund = refund, write = write}
end
