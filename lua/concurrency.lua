-- The concurrency limit: twin of crates/limit/src/concurrency.rs; prelude.lua describes the functions.
--
-- Record: one packed string, little endian: reset_at (6 bytes, ms), restarted_until (6 bytes, ms: the end of
-- the leases that restarted because the clock was set back), total (4 bytes: the permits of all groups), then
-- the groups of leases that end together, the soonest first: ends_at (6 bytes, ms) and permits (4 bytes).
-- Anything else is read as a new caller's record.
--
-- The groups stay packed: a call unpacks only the ended groups and the groups that a binary search visits.
algorithms.concurrency = function()
  local decode, sub = struct.unpack, string.sub

  -- The end of a lease that begins at `begins_at`.
  local function lease_end(window, begins_at)
    local multiple = (window + (-window) % 64) / 64
    local ends_at = begins_at + window
    return ends_at + (-ends_at) % multiple
  end

  -- The end and the permits of group `index`, counted from 0.
  local function group(view, index)
    return decode('<I6I4', view.groups, 10 * index + 1)
  end

  -- The index of the first group that ends after `time`; the number of groups if none does.
  local function first_ending_after(view, time)
    local low, high = 0, view.group_count
    -- The most frequent case: no group ends after `time`.
    if high > 0 and decode('<I6', view.groups, 10 * high - 9) <= time then return high end
    while low < high do
      local middle = (low + high - (low + high) % 2) / 2
      if decode('<I6', view.groups, 10 * middle + 1) > time then high = middle else low = middle + 1 end
    end
    return low
  end

  -- Replaces the groups from index `from` to before `to` with one group of `permits` that ends at `ends_at`,
  -- or with none if `permits` is 0.
  local function replace(view, from, to, ends_at, permits)
    local groups = view.groups
    local new = permits > 0 and struct.pack('<I6I4', ends_at, permits) or ''
    view.groups = sub(groups, 1, 10 * from) .. new .. sub(groups, 10 * to + 1)
    view.group_count = #view.groups / 10
  end

  local function set_usage(view, used)
    if used < 0 then used = 0 end
    local left = view.limit - used
    view.used, view.remaining = used, left > 0 and left or 0
  end

  -- When enough leases will have ended for `cost` if none is renewed or refunded; -1: `cost` is above the
  -- quota.
  local function retry_at(view, cost)
    local room = view.limit - cost
    if room < 0 then return -1 end
    local time, used, index = view.now, view.used, view.first
    while used > room and index < view.group_count do
      local ends_at, permits = group(view, index)
      time, used, index = ends_at, used - permits, index + 1
    end
    return time
  end

  local function read(raw, now, limit, window)
    local view = {
      limit = limit, window = window, now = now, ends_at = lease_end(window, now), reset_at = 0,
      restarted_until = 0,
      total = 0, groups = '', group_count = 0, first = 0, dirty = false,
    }
    if raw and #raw % 10 == 6 and #raw > 6 then
      view.reset_at, view.restarted_until, view.total = decode('<I6I6I4', raw)
      view.groups, view.group_count = sub(raw, 17), (#raw - 16) / 10
    end
    -- The clock was set back: all leases restart.
    local ends_at = view.ends_at
    if view.reset_at > lease_end(window, now + (window - window % 4) / 4) then
      view.reset_at, view.restarted_until, view.dirty = ends_at, ends_at, true
      replace(view, 0, view.group_count, ends_at, view.total)
    end
    local used, first = view.total, 0
    while first < view.group_count do
      local ended_at, permits = group(view, first)
      if ended_at > now then break end
      used, first = used - permits, first + 1
    end
    view.first = first
    set_usage(view, used)
    return view
  end

  local function decide(view, cost)
    local now, reset = view.now, view.reset_at
    return view.used, reset > now and reset or now,
      cost <= view.remaining and -1 or retry_at(view, cost)
  end

  local function charge(view, cost)
    local used = view.used
    if cost > 4294967295 - used then cost = 4294967295 - used end
    if cost == 0 then return decide(view, 0) end
    if view.first > 0 then replace(view, 0, view.first, 0, 0) end
    view.first = 0
    local ends_at = view.ends_at
    local to = first_ending_after(view, ends_at)
    local from, permits = to, cost
    if to > 0 then
      local group_end, held = group(view, to - 1)
      if group_end == ends_at then from, permits = to - 1, held + cost end
    end
    replace(view, from, to, ends_at, permits)
    set_usage(view, used + cost)
    view.total, view.dirty = view.used, true
    if ends_at > view.reset_at then view.reset_at = ends_at end
    return decide(view, 0)
  end

  -- Releases up to `cost` permits of the group that ends at `ends_at`, if it has not ended. Returns their
  -- number.
  local function release(view, ends_at, cost)
    local index = first_ending_after(view, ends_at) - 1
    if index < view.first then return 0 end
    local group_end, permits = group(view, index)
    if group_end ~= ends_at then return 0 end
    local released = cost < permits and cost or permits
    replace(view, index, index + 1, ends_at, permits - released)
    set_usage(view, view.used - released)
    view.total, view.dirty = view.total - released, true
    return released
  end

  local function refund(view, charged_at, cost)
    local ends_at = lease_end(view.window, charged_at)
    local left = cost - release(view, ends_at, cost)
    -- If the leases have restarted since the charge, their permits are in the restarted group: a group at
    -- `ends_at` belongs to other leases.
    if left > 0 and ends_at > view.now then release(view, view.restarted_until, left) end
  end

  -- Releases up to `cost` permits, those whose leases end first.
  local function release_any(view, cost)
    while cost > 0 and view.first < view.group_count do
      local ends_at = group(view, view.first)
      cost = cost - release(view, ends_at, cost)
    end
  end

  local function write(view)
    return struct.pack('<I6I6I4', view.reset_at, view.restarted_until, view.total)
      .. view.groups, view.reset_at
  end

  return {
    read = read, decide = decide, charge = charge, overdraw = charge, refund = refund, release = release_any,
    write = write,
  }
end
