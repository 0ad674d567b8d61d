-- The sliding window: twin of src/limit/sliding_window.rs, function for function.
--
-- Record: one packed string, little endian: seen (6 bytes, ms), reset_at (6 bytes, ms), then k + 1
-- counts of 4 bytes, newest first. Anything else is read as a caller never seen.
--
-- Every number is a whole number below 2^53 (the configuration keeps limit * s below 2^52), so doubles
-- are exact, and so is a - a % b, which is how this file rounds down: for a + b < 2^53 no quotient
-- rounds up to the next whole number.
--
-- Registers in `algorithms`, by the tag that the gateway sends, as a function that makes its table:
-- Redis runs all of this anew with each call, so what a call does not use is not made. The table has:
--   read(raw, now, limit, window, resolution, option, key) -> reading
--                         the record at `now`; raw is false where there is none; `option` is what only
--                         one algorithm needs: strict (1 or 0) here, a leaky bucket's max_wait in ms
--   tell(reading, cost)   -> used, reset_at, retry_at (-1: admitted, or never); charges nothing
--   charge(reading, cost, unit) -> used, reset_at; does not ask. `unit`: what each of the requests costs
--                         that the charge is for together; left out: it is for one
--   refund(reading, charged_at, cost)   gives back what still counts
--   write(reading, key)   -> raw, expires_at (ms)
--   spendable(reading)    -> when what was charged just now may not be spent any more (ms); only where
--                         tokens may be taken ahead
--   list                  true where the record is a list: then `raw` is its last element, and `write`
--                         writes by itself and returns false for it
--   wait(reading, cost)   -> how long a charge that `remaining` admits waits, in ms; nil: it does not fit
--                         all the same. Only where charges wait
-- and a reading has `limit`, `remaining`, which `charge` lowers, and `dirty`: whether it must be written,
-- because it was charged or its clock was set back.
--
-- A function, a table or a look-up of a global here is paid for by each decision: few functions, one
-- table for a reading, one for its counts.
algorithms.sliding_window = function()
  -- The first ms from now on at which `cost` would be admitted if nobody else charged; -1: never.
  local function retry_at(reading, cost)
    local room = reading.limit - cost
    if room < 0 then return -1 end
    local s, k, counts = reading.s, reading.k, reading.counts
    local full, old, start, now = reading.full, reading.old, reading.start, reading.now
    for m = 0, k + 1 do
      if m > 0 then
        old = m <= k and counts[k - m + 3] or 0
        full = full - old
        start = start + s
      end
      local rest = room - full
      if rest >= 0 then
        if old <= rest then return start > now and start or now end
        if not reading.strict then
          local product = rest * s
          local at = start + s - (product - product % old) / old
          if at < start + s then return at > now and at or now end
        end
      end
    end
    return -1
  end

  -- The stored reset-at while it is ahead; else when the oldest live sub-window leaves the window;
  -- now, if nothing is live.
  local function reset_at(reading)
    if reading.reset_at > reading.now then return reading.reset_at end
    local k, counts = reading.k, reading.counts
    for age = k, 0, -1 do
      if counts[age + 3] > 0 then return reading.start + (k + 1 - age) * reading.s end
    end
    return reading.now
  end

  local function tell(reading, cost)
    local left, reset, retry = reading.remaining, reset_at(reading), -1
    if left == 0 then
      retry = retry_at(reading, 1)
      if retry > reset then reset = retry end
    end
    if cost > left and cost ~= 1 then retry = retry_at(reading, cost) end
    return reading.full + reading.weighted, reset, cost <= left and -1 or retry
  end

  local function read(raw, now, limit, window, k, option)
    local s = (window - window % k) / k
    local layout = k == 6 and '<I6I6I4I4I4I4I4I4I4' or '<I6I6' .. string.rep('I4', k + 1)
    -- counts[3 + age]: the count of the sub-window `age` before the current one.
    local counts, seen, reset, dirty, shift = {}, 0, 0, false, k + 1
    if raw and #raw == 12 + 4 * (k + 1) then
      counts = {struct.unpack(layout, raw)}
      seen, reset = counts[1], counts[2]
      -- A record's time never runs backwards; one whose clock was set back far moves with it.
      if seen - now > 5000 then
        reset = reset - ((seen - seen % s) - (now - now % s))
        if reset < 0 then reset = 0 end
        seen, dirty = now, true
      elseif seen > now then
        now = seen
      end
      shift = ((now - now % s) - (seen - seen % s)) / s
    end
    if shift > 0 then
      for age = k, 0, -1 do counts[age + 3] = age >= shift and counts[age + 3 - shift] or 0 end
    end
    local full, start, old, weighted = 0, now - now % s, counts[k + 3], counts[k + 3]
    for at = 3, k + 2 do full = full + counts[at] end
    if option == 0 then
      local share = old * (start + s - now) + s - 1
      weighted = (share - share % s) / s
    end
    local remaining = limit - full - weighted
    return {
      limit = limit, s = s, k = k, layout = layout, counts = counts, now = now, start = start,
      seen = seen, reset_at = reset, full = full, old = old, weighted = weighted,
      strict = option ~= 0, remaining = remaining > 0 and remaining or 0, dirty = dirty,
    }
  end

  local function charge(reading, cost, unit)
    unit = unit or cost
    if cost == 0 then return tell(reading, 0) end
    local counts = reading.counts
    if cost > 4294967295 - counts[3] then cost = 4294967295 - counts[3] end
    local full = reading.full + cost
    counts[3] = counts[3] + cost
    reading.full, reading.seen, reading.dirty = full, reading.now, true
    local used = full + reading.weighted
    local left = reading.limit - used
    if left < 0 then left = 0 end
    reading.remaining = left
    local reset = reset_at(reading)
    if left < unit then
      local retry = retry_at(reading, unit)
      if retry < 0 then retry = retry_at(reading, 1) end
      if retry > reset then reset = retry end
    end
    reading.reset_at = reset
    return used, reset
  end

  local function refund(reading, charged_at, cost)
    local s, k, counts = reading.s, reading.k, reading.counts
    local age = (reading.start - (charged_at - charged_at % s)) / s
    local count = age >= 0 and age <= k and counts[age + 3] or 0
    if cost > count then cost = count end
    if cost == 0 then return end
    -- What clients were told must not move back with what it was worked out from.
    local _, told = tell(reading, 0)
    reading.reset_at = told
    counts[age + 3] = count - cost
    reading.seen, reading.dirty = reading.now, true
    if age < k then
      reading.full = reading.full - cost
    else
      reading.old = count - cost
      reading.weighted = reading.old
      if not reading.strict then
        local share = reading.old * (reading.start + s - reading.now) + s - 1
        reading.weighted = (share - share % s) / s
      end
    end
    local left = reading.limit - reading.full - reading.weighted
    reading.remaining = left > 0 and left or 0
  end

  local function write(reading)
    -- Only a record that was charged, refunded or moved with its clock is written: all have seen = now,
    -- and the counts are as of now.
    local k, seen, reset = reading.k, reading.seen, reading.reset_at
    local expires_at = seen + (k + 1) * reading.s
    if reset > expires_at then expires_at = reset end
    return struct.pack(reading.layout, seen, reset, unpack(reading.counts, 3, k + 3)), expires_at
  end

  local function spendable(reading)
    return reading.start + reading.s
  end

  return {
    read = read, tell = tell, charge = charge, refund = refund, write = write, spendable = spendable,
  }
end
