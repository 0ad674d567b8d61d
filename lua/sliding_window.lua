-- The sliding window: twin of src/limit/sliding_window.rs, function for function.
--
-- Record: one packed string, little endian: seen (6 bytes, ms), reset_at (6 bytes, ms), then k + 1
-- counts of 4 bytes, newest first. Anything else is read as a caller never seen.
--
-- Every number is a whole number below 2^53 (the configuration keeps limit * s below 2^52), so doubles
-- are exact, and floor(a / b) is too: for a + b < 2^53 no quotient rounds up to the next whole number.
--
-- Registers in `algorithms`, by the tag that the gateway sends. An algorithm is five functions:
--   read(raw, quota, now) -> reading    the record at `now`; raw is false where there is none
--   decide(reading, cost) -> admitted   charges nothing
--   tell(reading, cost)   -> remaining, used, reset_at, retry_at (-1: admitted, or never)
--   charge(reading, cost) -> remaining, used, reset_at
--   write(reading)        -> raw, expires_at (ms)
-- A reading with `dirty` set must be written: it was charged, or its clock was set back.
algorithms.sliding_window = (function()
  local MAX_STEP_BACK = 5000
  local floor, max = math.floor, math.max

  -- The first ms from now on at which `cost` would be admitted if nobody else charged; -1: never.
  local function retry_at(reading, cost)
    local room = reading.limit - cost
    local s, k, counts = reading.s, reading.k, reading.counts
    local full, old = reading.full, reading.old
    if room < 0 then return -1 end
    for m = 0, k + 1 do
      if m > 0 then
        old = m <= k and counts[k - m + 1] or 0
        full = full - old
      end
      local rest = room - full
      if rest >= 0 then
        local start = (reading.index + m) * s
        if old <= rest then return max(start, reading.now) end
        local offset = s - floor(rest * s / old)
        if offset < s then return max(start + offset, reading.now) end
      end
    end
    return -1
  end

  -- The stored reset-at while it is ahead; else when the oldest live sub-window leaves the window;
  -- now, if nothing is live.
  local function reset_at(reading)
    if reading.reset_at > reading.now then return reading.reset_at end
    for age = reading.k, 0, -1 do
      if reading.counts[age + 1] > 0 then
        return (reading.index + reading.k + 1 - age) * reading.s
      end
    end
    return reading.now
  end

  local function used(reading) return reading.full + reading.weighted end
  local function remaining(reading) return max(0, reading.limit - used(reading)) end

  -- The time that counts for a record never runs backwards; one whose clock was set back moves with it.
  local function settle(seen, reset, now, s)
    local behind = seen - now
    if behind <= 0 then return now, seen, reset, false end
    if behind <= MAX_STEP_BACK then return seen, seen, reset, false end
    local back = floor(seen / s) - floor(now / s)
    return now, now, max(0, reset - back * s), true
  end

  local function layout(k) return '<I6I6' .. string.rep('I4', k + 1) end

  local function read(raw, quota, now)
    local k = quota.resolution
    local s = floor(quota.window / k)
    local reading = {limit = quota.limit, s = s, k = k, counts = {}, seen = 0, reset_at = 0}
    local counts, stored = reading.counts, nil
    if raw and #raw == 12 + 4 * (k + 1) then
      stored = {struct.unpack(layout(k), raw)}
      now, reading.seen, reading.reset_at, reading.dirty = settle(stored[1], stored[2], now, s)
    end
    reading.now, reading.index = now, floor(now / s)
    -- counts[1 + age]: the count of the sub-window `age` before the current one.
    local shift = stored and reading.index - floor(reading.seen / s) or k + 1
    local full = 0
    for age = 0, k do
      local count = age >= shift and stored[3 + age - shift] or 0
      counts[age + 1] = count
      if age < k then full = full + count end
    end
    local old = counts[k + 1]
    local left = s - (now - reading.index * s)
    reading.full, reading.old = full, old
    reading.weighted = floor((old * left + s - 1) / s)
    return reading
  end

  local function decide(reading, cost) return cost <= remaining(reading) end

  local function tell(reading, cost)
    local left, reset = remaining(reading), reset_at(reading)
    if left == 0 then reset = max(reset, retry_at(reading, 1)) end
    local retry = cost <= left and -1 or retry_at(reading, cost)
    return left, used(reading), reset, retry
  end

  local function charge(reading, cost)
    if cost == 0 then return tell(reading, 0) end
    reading.dirty = true
    reading.counts[1] = reading.counts[1] + cost
    reading.full = reading.full + cost
    reading.seen = reading.now
    reading.reset_at = reset_at(reading)
    local left = remaining(reading)
    if left < cost then reading.reset_at = max(reading.reset_at, retry_at(reading, cost)) end
    return left, used(reading), reading.reset_at
  end

  local function write(reading)
    -- Only a record that was charged or moved with its clock is written: both have seen = now, and
    -- the counts are as of now.
    local raw = struct.pack(layout(reading.k), reading.seen, reading.reset_at, unpack(reading.counts))
    return raw, max(reading.reset_at, reading.seen + (reading.k + 1) * reading.s)
  end

  return {read = read, decide = decide, tell = tell, charge = charge, write = write}
end)()
