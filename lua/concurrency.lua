-- The concurrency limit: twin of src/limit/concurrency.rs; prelude.lua describes the functions.
--
-- Record: one packed string, little endian: reset_at (6 bytes, ms), restarted_until (6 bytes, ms: the end of
-- the leases that restarted because the clock was set back), total (4 bytes: the slots of all groups), then
-- the groups of leases that end together, the soonest first: ends_at (6 bytes, ms) and slots (4 bytes).
-- Anything else is read as a new caller's record.
--
-- The groups stay packed: a call unpacks only those that have ended, and those of a binary search.
algorithms.concurrency = function()
  local decode, sub = struct.unpack, string.sub

  -- The end of a lease that begins at `at`.
  local function lease_end(window, at)
    local multiple = (window + (-window) % 64) / 64
    local ends_at = at + window
    return ends_at + (-ends_at) % multiple
  end

  -- The end and the slots of group `i`, counted from 0.
  local function group(reading, i)
    return decode('<I6I4', reading.groups, 10 * i + 1)
  end

  -- The index of the first group that ends after `at`; the number of groups if none does.
  local function first_ending_after(reading, at)
    local low, high = 0, reading.n
    -- The most frequent case: none does.
    if high > 0 and decode('<I6', reading.groups, 10 * high - 9) <= at then return high end
    while low < high do
      local middle = (low + high - (low + high) % 2) / 2
      if decode('<I6', reading.groups, 10 * middle + 1) > at then high = middle else low = middle + 1 end
    end
    return low
  end

  -- Replaces the groups from index `from` to before `to` with one of `slots` that ends at `ends_at`; with
  -- none if `slots` is 0.
  local function replace(reading, from, to, ends_at, slots)
    local groups = reading.groups
    local new = slots > 0 and struct.pack('<I6I4', ends_at, slots) or ''
    reading.groups = sub(groups, 1, 10 * from) .. new .. sub(groups, 10 * to + 1)
    reading.n = #reading.groups / 10
  end

  local function set_usage(reading, used)
    if used < 0 then used = 0 end
    local left = reading.limit - used
    reading.used, reading.remaining = used, left > 0 and left or 0
  end

  -- When enough leases will have ended for `cost` if none is renewed or refunded; -1: `cost` is above the
  -- quota.
  local function retry_at(reading, cost)
    local room = reading.limit - cost
    if room < 0 then return -1 end
    local at, used, i = reading.now, reading.used, reading.first
    while used > room and i < reading.n do
      local ends_at, slots = group(reading, i)
      at, used, i = ends_at, used - slots, i + 1
    end
    return at
  end

  local function read(raw, now, limit, window)
    local reading = {
      limit = limit, window = window, now = now, ends_at = lease_end(window, now), reset_at = 0,
      restarted_until = 0,
      total = 0, groups = '', n = 0, first = 0, dirty = false,
    }
    if raw and #raw % 10 == 6 and #raw > 6 then
      reading.reset_at, reading.restarted_until, reading.total = decode('<I6I6I4', raw)
      reading.groups, reading.n = sub(raw, 17), (#raw - 16) / 10
    end
    -- The clock was set back: all leases restart.
    local ends_at = reading.ends_at
    if reading.reset_at > lease_end(window, now + (window - window % 4) / 4) then
      reading.reset_at, reading.restarted_until, reading.dirty = ends_at, ends_at, true
      replace(reading, 0, reading.n, ends_at, reading.total)
    end
    local used, first = reading.total, 0
    while first < reading.n do
      local ended_at, slots = group(reading, first)
      if ended_at > now then break end
      used, first = used - slots, first + 1
    end
    reading.first = first
    set_usage(reading, used)
    return reading
  end

  local function decide(reading, cost)
    local now, reset = reading.now, reading.reset_at
    return reading.used, reset > now and reset or now,
      cost <= reading.remaining and -1 or retry_at(reading, cost)
  end

  local function charge(reading, cost)
    local used = reading.used
    if cost > 4294967295 - used then cost = 4294967295 - used end
    if cost == 0 then return decide(reading, 0) end
    if reading.first > 0 then replace(reading, 0, reading.first, 0, 0) end
    reading.first = 0
    local ends_at = reading.ends_at
    local to = first_ending_after(reading, ends_at)
    local from, slots = to, cost
    if to > 0 then
      local last, held = group(reading, to - 1)
      if last == ends_at then from, slots = to - 1, held + cost end
    end
    replace(reading, from, to, ends_at, slots)
    set_usage(reading, used + cost)
    reading.total, reading.dirty = reading.used, true
    if ends_at > reading.reset_at then reading.reset_at = ends_at end
    return decide(reading, 0)
  end

  -- Releases up to `cost` slots of the group that ends at `ends_at`, if it has not ended. Returns how many.
  local function release(reading, ends_at, cost)
    local at = first_ending_after(reading, ends_at) - 1
    if at < reading.first then return 0 end
    local last, slots = group(reading, at)
    if last ~= ends_at then return 0 end
    local released = cost < slots and cost or slots
    replace(reading, at, at + 1, ends_at, slots - released)
    set_usage(reading, reading.used - released)
    reading.total, reading.dirty = reading.total - released, true
    return released
  end

  local function refund(reading, charged_at, cost)
    local ends_at = lease_end(reading.window, charged_at)
    local left = cost - release(reading, ends_at, cost)
    -- If the leases have restarted since the charge, their slots are in the restarted group: the group at
    -- `ends_at` does not exist, or is that of other leases.
    if left > 0 and ends_at > reading.now then release(reading, reading.restarted_until, left) end
  end

  local function write(reading)
    return struct.pack('<I6I6I4', reading.reset_at, reading.restarted_until, reading.total)
      .. reading.groups, reading.reset_at
  end

  return {read = read, decide = decide, charge = charge, refund = refund, write = write}
end
