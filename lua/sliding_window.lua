-- The sliding window: twin of crates/limit/src/sliding_window.rs; prelude.lua describes the functions.
--
-- Record: one packed string, little endian: updated_at (6 bytes, ms), reset_at (6 bytes, ms), then
-- resolution + 1 counts, newest first: of 4 bytes each, or of 7 bytes each if one of them may be 2^32 or more.
-- Anything else is read as a new caller's record.
--
-- Every number is a whole number below 2^53, so doubles are exact: limit and counts are at most 2^53 - 1, also the
-- sum of the counts of a window, and a product that could exceed 2^53 goes through `multiply_divide`. This file
-- rounds down by a - a % b, which is also exact: for a + b < 2^53 no quotient rounds up to the next whole number.
algorithms.sliding_window = function()
  -- Returns a * b / c, rounded down, and the remainder. It is exact for a, b and c below 2^53 if the quotient is
  -- below 2^53: the division goes bit by bit over b, and no number exceeds c.
  local function multiply_divide(a, b, c)
    local whole, bit, quotient, rest = 0, 1, 0, 0
    if a >= c then
      whole = (a - a % c) / c * b
      a = a % c
    end
    while bit * 2 <= b do bit = bit * 2 end
    while bit >= 1 do
      quotient = quotient * 2
      if rest >= c - rest then
        rest, quotient = rest - (c - rest), quotient + 1
      else
        rest = rest * 2
      end
      if b >= bit then
        b = b - bit
        if rest >= c - a then
          rest, quotient = rest - (c - a), quotient + 1
        else
          rest = rest + a
        end
      end
      bit = bit / 2
    end
    return whole + quotient, rest
  end

  -- The first ms from now on at which `cost` would be admitted if nothing else were charged; -1: `cost` is
  -- above the quota.
  local function retry_at(view, cost)
    local room = view.limit - cost
    if room < 0 then return -1 end
    local step, resolution, counts = view.step, view.resolution, view.counts
    local full, old, start, now = view.full, view.old, view.start, view.now
    for moved = 0, resolution + 1 do
      if moved > 0 then
        old = moved <= resolution and counts[resolution - moved + 3] or 0
        full = full - old
        start = start + step
      end
      local rest = room - full
      if rest >= 0 then
        if old <= rest then return start > now and start or now end
        if not view.strict then
          local product = rest * step
          local share = product < 9007199254740992 and (product - product % old) / old
            or multiply_divide(rest, step, old)
          local time = start + step - share
          if time < start + step then return time > now and time or now end
        end
      end
    end
    return -1
  end

  -- The stored reset_at if it is in the future; else when the oldest non-zero sub-window leaves the window,
  -- or now if all are 0.
  local function reset_at(view)
    if view.reset_at > view.now then return view.reset_at end
    local resolution, counts = view.resolution, view.counts
    for age = resolution, 0, -1 do
      if counts[age + 3] > 0 then return view.start + (resolution + 1 - age) * view.step end
    end
    return view.now
  end

  local function decide(view, cost)
    local left, reset, retry = view.remaining, reset_at(view), -1
    if left == 0 then
      retry = retry_at(view, 1)
      if retry > reset then reset = retry end
    end
    if cost > left and cost ~= 1 then retry = retry_at(view, cost) end
    local used = view.full + view.weighted
    return used < 9007199254740992 and used or 9007199254740991, reset, cost <= left and -1 or retry
  end

  -- The part of the oldest count that still counts, rounded up; `left` is the rest of its sub-window, in ms.
  local function weigh(old, left, step)
    local share = old * left + step - 1
    if share < 9007199254740992 then return (share - share % step) / step end
    local quotient, rest = multiply_divide(old, left, step)
    return rest > 0 and quotient + 1 or quotient
  end

  local function read(raw, now, limit, window, resolution, option)
    local step = (window - window % resolution) / resolution
    local layout, wide = resolution == 6 and '<I6I6I4I4I4I4I4I4I4' or '<I6I6' .. string.rep('I4', resolution + 1), false
    -- counts[3 + age]: the count of the sub-window `age` before the current one.
    local counts, updated_at, reset, dirty, shift = {}, 0, 0, false, resolution + 1
    if raw and #raw == 12 + 7 * (resolution + 1) then
      wide = {struct.unpack('<I6I6' .. string.rep('I7', resolution + 1), raw)}
      local sum = 0
      for i = 3, resolution + 2 do sum = sum + wide[i] end
      if sum > 9007199254740991 or wide[resolution + 3] > 9007199254740991 then wide = false end
    end
    if wide or raw and #raw == 12 + 4 * (resolution + 1) then
      counts = wide or {struct.unpack(layout, raw)}
      updated_at, reset = counts[1], counts[2]
      -- If the clock steps back by at most 5 s, the record's time stands still. After a larger step, the
      -- record moves back with the clock.
      if updated_at - now > 5000 then
        reset = reset - ((updated_at - updated_at % step) - (now - now % step))
        if reset < 0 then reset = 0 end
        updated_at, dirty = now, true
      elseif updated_at > now then
        now = updated_at
      end
      shift = ((now - now % step) - (updated_at - updated_at % step)) / step
    end
    if shift > 0 then
      for age = resolution, 0, -1 do counts[age + 3] = age >= shift and counts[age + 3 - shift] or 0 end
    end
    -- `full`: the sum of all counts but the oldest; `old`: the oldest; `weighted`: its part that counts.
    local full, start, old, weighted = 0, now - now % step, counts[resolution + 3], counts[resolution + 3]
    for i = 3, resolution + 2 do full = full + counts[i] end
    if option == 0 then weighted = weigh(old, start + step - now, step) end
    local remaining = limit - full - weighted
    return {
      limit = limit, step = step, resolution = resolution, layout = layout, counts = counts, now = now,
      start = start, updated_at = updated_at, reset_at = reset, full = full, old = old, weighted = weighted,
      strict = option ~= 0, remaining = remaining > 0 and remaining or 0, dirty = dirty,
    }
  end

  local function charge(view, cost, unit)
    unit = unit or cost
    if cost == 0 then return decide(view, 0) end
    local counts = view.counts
    if cost > 9007199254740991 - view.full then cost = 9007199254740991 - view.full end
    local full = view.full + cost
    counts[3] = counts[3] + cost
    view.full, view.updated_at, view.dirty = full, view.now, true
    local left = view.limit - full - view.weighted
    if left < 0 then left = 0 end
    view.remaining = left
    local reset = reset_at(view)
    if left < unit then
      local retry = retry_at(view, unit)
      if retry < 0 then retry = retry_at(view, 1) end
      if retry > reset then reset = retry end
    end
    view.reset_at = reset
    local used = full + view.weighted
    return used < 9007199254740992 and used or 9007199254740991, reset
  end

  local function refund(view, charged_at, cost)
    local step, resolution, counts = view.step, view.resolution, view.counts
    local age = (view.start - (charged_at - charged_at % step)) / step
    local count = age >= 0 and age <= resolution and counts[age + 3] or 0
    if cost > count then cost = count end
    if cost == 0 then return end
    -- `reset_at` must not move back with the counts from which it was computed: store it.
    local _, reset = decide(view, 0)
    view.reset_at = reset
    counts[age + 3] = count - cost
    view.updated_at, view.dirty = view.now, true
    if age < resolution then
      view.full = view.full - cost
    else
      view.old = count - cost
      view.weighted = view.old
      if not view.strict then view.weighted = weigh(view.old, view.start + step - view.now, step) end
    end
    local left = view.limit - view.full - view.weighted
    view.remaining = left > 0 and left or 0
  end

  -- Refunds up to `cost` units, those of the newest sub-windows first.
  local function release(view, cost)
    for age = 0, view.resolution do
      local count = view.counts[age + 3]
      local part = cost < count and cost or count
      if part > 0 then
        refund(view, view.start - age * view.step, part)
        cost = cost - part
      end
    end
  end

  local function write(view)
    -- A written record was charged, refunded or moved back with the clock. So updated_at is now, and the
    -- counts are shifted to now.
    local resolution, updated_at, reset = view.resolution, view.updated_at, view.reset_at
    local expires_at = updated_at + (resolution + 1) * view.step
    if reset > expires_at then expires_at = reset end
    local layout = view.layout
    -- `view.full` and `view.old` are at least as large as every count.
    if view.full > 4294967295 or view.old > 4294967295 then
      layout = '<I6I6' .. string.rep('I7', resolution + 1)
    end
    return struct.pack(layout, updated_at, reset, unpack(view.counts, 3, resolution + 3)), expires_at
  end

  local function spendable_until(view)
    return view.start + view.step
  end

  return {
    read = read, decide = decide, charge = charge, refund = refund, release = release, write = write,
    spendable_until = spendable_until,
  }
end
