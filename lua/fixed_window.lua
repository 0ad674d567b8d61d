-- The fixed window: twin of crates/limit/src/fixed_window.rs; prelude.lua describes the functions.
--
-- Record: one packed string, little endian: reset_at (6 bytes, ms), count (4 bytes, or 7 from 2^32 on; at most
-- 2^53 - 1). One value, so that neither can be evicted without the other. Any other value, and a record past
-- its reset_at, is read as a new caller's record: the TTL only frees memory.
--
-- Windows of a calendar: the gateway passes those around its own time. `ends` is the end of one (ms; 0: windows of
-- a fixed length), `window` its length, and `next_window` the length of the one after it (ms). If this server's
-- clock is in neither, windows of these lengths are repeated.
algorithms.fixed_window = function()
  local function read(raw, now, limit, window, next_window, ends)
    local reset, count, dirty = 0, 0, false
    local unused_reset, latest = now, now + window + 5000
    local is_calendar = ends ~= 0
    if not is_calendar then
      ends = now + window
    else
      if now >= ends then
        ends = ends + math.floor((now - ends) / next_window + 1) * next_window
        window = next_window
      elseif now < ends - window then
        ends, next_window = ends - math.floor((ends - now - 1) / window) * window, window
      end
      unused_reset, latest = ends, now + 5000 < ends and ends or ends + next_window
    end
    if raw and #raw == 10 then
      reset, count = struct.unpack('<I6I4', raw)
    elseif raw and #raw == 13 then
      reset, count = struct.unpack('<I6I7', raw)
      if count > 9007199254740991 then reset, count = 0, 0 end
    end
    -- An end this late means that the clock was set back, or the calendar changed: the window moves with it.
    if reset > latest then reset, dirty = ends, true end
    -- A live window of a calendar is the one around `now`, or the next one.
    local starts = reset - window
    if is_calendar then starts = reset > ends and ends or ends - window end
    local live = reset > now
    local remaining = live and limit - count or limit
    return {
      limit = limit, starts = starts, ends = ends, unused_reset = unused_reset, live = live, count = count,
      reset_at = reset, remaining = remaining > 0 and remaining or 0, dirty = dirty,
    }
  end

  local function decide(view, cost)
    local used, reset = 0, view.unused_reset
    if view.live then used, reset = view.count, view.reset_at end
    return used, reset, (cost <= view.remaining or cost > view.limit) and -1 or reset
  end

  local function charge(view, cost)
    if cost == 0 then return decide(view, 0) end
    if not view.live then
      view.live, view.count, view.reset_at = true, 0, view.ends
    end
    local count = view.count + cost
    if count > 9007199254740991 then count = 9007199254740991 end
    local left = view.limit - count
    view.count, view.remaining, view.dirty = count, left > 0 and left or 0, true
    return count, view.reset_at
  end

  local function refund(view, charged_at, cost)
    local reset = view.reset_at
    if not view.live or charged_at < view.starts or charged_at >= reset then return end
    local count = view.count - cost
    if count < 0 then count = 0 end
    local left = view.limit - count
    view.count, view.remaining, view.dirty = count, left > 0 and left or 0, true
  end

  local function write(view)
    local layout = view.count > 4294967295 and '<I6I7' or '<I6I4'
    return struct.pack(layout, view.reset_at, view.count), view.reset_at
  end

  local function spendable_until(view)
    return view.reset_at
  end

  return {
    read = read, decide = decide, charge = charge, refund = refund, write = write,
    spendable_until = spendable_until,
  }
end
