-- The leaky bucket: twin of crates/limit/src/leaky_bucket.rs and of its record, crates/limit/src/gcra.rs;
-- prelude.lua describes the functions.
--
-- Record: one packed string, little endian: updated_at (6 bytes, ms), reset_at (6 bytes, ms), at (6 bytes,
-- ms), fraction (4 bytes), rate (4 bytes), then the runs of free slots (see free_slots.lua). The TAT
-- (theoretical arrival time), the end of the taken slots, is `at + fraction / rate` ms after the epoch,
-- where rate is the quota of the last charge. Any other value is read as a new caller's record.
--
-- Time is counted in units of 1 / rate ms; a slot is `window` units long. All are whole numbers below 2^53
-- (the configuration keeps limit * max_wait and limit * window below 2^52), so nothing is rounded.
algorithms.leaky_bucket = function()
  -- `limit` is the number of slots within max_wait; `max_delay` is max_wait in units of 1 / rate ms.
  local function set_usage(view, backlog)
    local window, limit, left = view.window, view.limit, view.max_delay - backlog
    -- Free slots after the backlog; negative if slots are overdrawn.
    local free = (left - left % window) / window + 1
    view.backlog, view.used, view.remaining = backlog, limit - free, free > 0 and free or 0
    if view.free_slots then
      local more = view.library.count_until(view.free_slots, view.max_delay, view.quota, window)
      view.used, view.remaining = view.used - more, view.remaining + more
    end
  end

  local function read(raw, now, quota, window, _, max_wait)
    local updated_at, reset, at, fraction, rate, dirty, has_free = 0, 0, 0, 0, 0, false, false
    if raw and #raw >= 26 and (#raw - 26) % 14 == 0 then
      updated_at, reset, at, fraction, rate = struct.unpack('<I6I6I6I4I4', raw)
      has_free = #raw > 26
      -- If the clock steps back by at most 5 s, the record's time stands still. After a larger step, the
      -- record moves back with the clock.
      if updated_at - now > 5000 then
        at, reset = at - (updated_at - now), reset - (updated_at - now)
        if at < 0 then at = 0 end
        if reset < 0 then reset = 0 end
        updated_at, dirty, has_free = now, true, false
      elseif updated_at > now then
        now = updated_at
      end
      -- No charge can leave a larger backlog: malformed, so read as a new caller's record.
      if rate == 0 or (at - now) * rate + fraction > 9007130535264256 then
        updated_at, reset, at, fraction, rate = 0, 0, 0, 0, 0
      end
    end
    local max_delay = max_wait * quota
    -- `library`: the functions of free_slots.lua, made when they are first needed.
    local view = {
      limit = (max_delay - max_delay % window) / window + 1, quota = quota, window = window, now = now,
      max_delay = max_delay, updated_at = updated_at, reset_at = reset, at = at, fraction = fraction,
      rate = rate, dirty = dirty, free_slots = false, library = false,
    }
    local backlog = 0
    if rate == quota then
      if at >= now then backlog = (at - now) * rate + fraction end
      if has_free and backlog > 0 then
        view.library = algorithms.free_slots()
        view.free_slots = view.library.read(raw, 27, now, rate, window, backlog)
      end
    else
      -- The quota has changed: the TAT is rounded up to a whole ms, once.
      local up = at + (fraction > 0 and 1 or 0)
      if up > now then backlog = (up - now) * quota end
      if backlog > 9007130535264256 then backlog = 9007130535264256 end
    end
    set_usage(view, backlog)
    return view
  end

  -- The position of the first `cost` adjacent free slots in the backlog; `latest` is the last position at
  -- which the request may begin.
  local function first_free(view, cost, latest)
    if not view.free_slots then return end
    return view.library.first_fit(view.free_slots, cost, latest, view.quota, view.window)
  end

  -- The last position at which the first of `cost` adjacent slots may begin, so that the last of them begins
  -- within max_wait; negative if there is none.
  local function latest_start(view, cost)
    if cost > 4294967295 then return -1 end
    return view.max_delay - (cost > 0 and cost - 1 or 0) * view.window
  end

  -- The delay of a request of `cost`, in ms; nil if it does not fit.
  local function wait(view, cost)
    local last = latest_start(view, cost)
    local begins = first_free(view, cost, last)
    if not begins or begins > last then begins = view.backlog end
    if begins <= last then return (begins + (-begins) % view.quota) / view.quota end
  end

  -- The first ms at which the backlog is at most `rest`.
  local function empties_to(view, rest)
    local over = view.backlog - rest
    if over < 0 then return view.now end
    return view.now + (over + (-over) % view.quota) / view.quota
  end

  -- The stored reset_at if it is in the future; else the next time at which a taken slot leaves room for another one
  -- within max_wait. Never before a request of cost 1 fits after the taken slots: free slots before them pass.
  local function reset_at(view)
    local now, left, fits_at = view.now, view.max_delay - view.backlog, empties_to(view, view.max_delay)
    if view.reset_at > now then return view.reset_at > fits_at and view.reset_at or fits_at end
    if left < 0 then return fits_at end
    local next = view.window - left % view.window
    if next > view.backlog then return now end
    return now + (next + (-next) % view.quota) / view.quota
  end

  local function decide(view, cost)
    local now, retry = view.now, -1
    if cost > 0 then
      local last = latest_start(view, cost)
      if last >= 0 then
        local free = first_free(view, cost, last)
        -- Headers tell whole seconds: slots that can be reached for less could have passed by then.
        if free and free > last and last < 1000 * view.quota then free = nil end
        local over = (free or view.backlog) - last
        if over > 0 then retry = now + (over + (-over) % view.quota) / view.quota end
      end
    end
    return view.used, reset_at(view), retry
  end

  -- Sets the TAT to `backlog` units after now.
  local function set_backlog(view, backlog)
    local fraction, rate = backlog % view.quota, view.quota
    view.at, view.fraction = view.now + (backlog - fraction) / rate, fraction
    view.rate, view.updated_at, view.dirty = rate, view.now, true
    if backlog == 0 then view.free_slots = false end
    set_usage(view, backlog)
  end

  local function charge(view, cost)
    if cost == 0 then return decide(view, 0) end
    if cost > 4294967295 then cost = 4294967295 end
    local last, backlog = latest_start(view, cost), view.backlog
    local begins = first_free(view, cost, last)
    if begins and begins <= last then
      view.library.take(view.free_slots, begins, cost, view.window)
    else
      -- The backlog grows only as far as it can be counted exactly, and to at most 2^47 ms.
      local max = view.quota * 140737488355328
      if max > 9007130535264256 then max = 9007130535264256 end
      if backlog > max then backlog = max end
      local room = max - backlog
      room = (room - room % view.window) / view.window
      if cost > room then cost = room end
      backlog = backlog + cost * view.window
    end
    set_backlog(view, backlog)
    local reset, fits_at = reset_at(view), empties_to(view, last >= 0 and last or view.max_delay)
    view.reset_at = fits_at > reset and fits_at or reset
    return decide(view, 0)
  end

  -- Frees `cost` slots, the first of which begins at `slot` (ms), if they are taken and have not passed.
  local function refund(view, slot, cost)
    if cost > 4294967295 then cost = 4294967295 end
    local max, rate, window = 9007130535264256, view.quota, view.window
    local backlog, length, slot_position = view.backlog, cost * window, (slot - view.now) * rate
    if backlog == 0 or cost == 0 or length > max then return end
    if slot_position > max / 2 or slot_position < -max / 2 then return end
    local same_rate, last = view.rate == rate, backlog - length
    local begins = last
    -- A quota change rounds the end of the taken slots up to a ms, so of the slots that were taken before
    -- it, only the last can still be identified.
    if last > (same_rate and slot_position or slot_position + rate - 1) then
      -- The last slot that begins at or before `slot_position`.
      local back = backlog - slot_position
      if not same_rate or back > max then return end
      begins = backlog - (back + (-back) % window)
    end
    local free_slots, library = view.free_slots, view.library
    if free_slots then begins = library.last_taken(free_slots, begins, length, window) end
    if begins <= slot_position - rate then return end
    -- `reset_at` must not move back with the backlog from which it was computed: store it.
    local reset = reset_at(view)
    if begins == last then
      if free_slots then last = library.trim_end(free_slots, last, window) end
      set_backlog(view, last > 0 and last or 0)
      view.reset_at = reset
    elseif begins + length > 0 then
      library = library or algorithms.free_slots()
      view.library, view.free_slots = library, free_slots or {}
      library.insert(view.free_slots, begins, cost, window)
      set_backlog(view, backlog)
      view.reset_at = reset
    end
  end

  local function write(view)
    local updated_at, reset, at = view.updated_at, view.reset_at, view.at
    local raw = struct.pack('<I6I6I6I4I4', updated_at, reset, at, view.fraction, view.rate)
    if view.free_slots then
      raw = raw .. view.library.write(view.free_slots, view.now, view.quota)
    end
    local tat = at + (view.fraction > 0 and 1 or 0)
    return raw, reset > tat and reset or tat
  end

  return {read = read, decide = decide, charge = charge, refund = refund, write = write, wait = wait}
end
