-- The free slots of a leaky bucket: slots that were refunded while later ones are still taken. Twin of
-- crates/limit/src/free_slots.rs.
--
-- In a record: runs of adjacent slots, the soonest first: at (6 bytes, ms), fraction (4 bytes), slots (4
-- bytes); the first slot begins `at + fraction / rate` ms after the epoch. In a view: an array with two
-- numbers for each run: its start, in units of 1 / rate ms after now, and its number of slots. A slot is
-- `window` units long.
--
-- A call makes the table of these functions only if a record has free slots, or gets some.
algorithms.free_slots = function()
  local remove, add = table.remove, table.insert

  -- The slots of a run that begin from now on: the start of the first, and their number.
  local function usable(begins, slots, window)
    if begins < 0 then return begins + window, slots - 1 end
    return begins, slots
  end

  -- The part of a run that has not passed: its start, and its number of slots (0 if all have passed).
  local function not_passed(begins, slots, window)
    if begins >= 0 then return begins, slots end
    local passed = (-begins - -begins % window) / window
    if passed >= slots then return begins, 0 end
    return begins + passed * window, slots - passed
  end

  -- The runs in a packed record, from byte `from` on, without the passed ones. None if the record is
  -- malformed: if runs overlap, or end after the backlog.
  local function read(raw, from, now, rate, window, backlog)
    local runs, n, last = {}, 0, -math.huge
    while from < #raw do
      local at, fraction, slots = struct.unpack('<I6I4I4', raw, from)
      from = from + 14
      local begins = (at - now) * rate + fraction
      local ends = begins + slots * window
      if begins < last or ends > backlog or fraction >= rate then return {} end
      last = ends
      begins, slots = not_passed(begins, slots, window)
      if slots > 0 then
        runs[n + 1], runs[n + 2] = begins, slots
        n = n + 2
      end
    end
    return runs
  end

  local function write(runs, now, rate)
    local raw = {}
    for i = 1, #runs, 2 do
      local fraction = runs[i] % rate
      raw[i] = struct.pack('<I6I4I4', now + (runs[i] - fraction) / rate, fraction, runs[i + 1])
      raw[i + 1] = ''
    end
    return table.concat(raw)
  end

  -- The number of slots that begin from now to `latest`.
  local function count_until(runs, latest, rate, window)
    if latest < rate then return 0 end
    local sum = 0
    for i = 1, #runs, 2 do
      local begins, slots = usable(runs[i], runs[i + 1], window)
      if begins > latest then break end
      local max = (latest - begins - (latest - begins) % window) / window + 1
      sum = sum + (slots < max and slots or max)
    end
    return sum
  end

  -- The position of the first `cost` adjacent slots that begin from now on, if any. `latest` is the last
  -- position at which the request may begin. None if `latest` is less than 1 ms from now: times are sent in
  -- whole ms, so the slots could have passed when the client retries.
  local function first_fit(runs, cost, latest, rate, window)
    if latest < rate then return end
    for i = 1, #runs, 2 do
      local begins, slots = usable(runs[i], runs[i + 1], window)
      if slots >= cost then return begins end
    end
  end

  -- Takes `cost` slots from `begins` on; `first_fit` returned that position. If the run's first slot has
  -- already begun, it stays free.
  local function take(runs, begins, cost, window)
    for i = 1, #runs, 2 do
      local from, slots = usable(runs[i], runs[i + 1], window)
      if from == begins and slots >= cost then
        local run = runs[i]
        remove(runs, i)
        remove(runs, i)
        if slots > cost then
          add(runs, i, slots - cost)
          add(runs, i, begins + cost * window)
        end
        if run < begins then
          add(runs, i, 1)
          add(runs, i, run)
        end
        return
      end
    end
  end

  -- The last position at or before `begins` where a range of `length` units overlaps no free slot.
  local function last_taken(runs, begins, length, window)
    for i = #runs - 1, 1, -2 do
      if runs[i] + runs[i + 1] * window <= begins then break end
      if runs[i] - length < begins then begins = runs[i] - length end
    end
    return begins
  end

  -- Called when the slots from `ends` on have become free: removes the runs that end there. Returns the new
  -- end of the taken slots.
  local function trim_end(runs, ends, window)
    local n = #runs
    while n > 0 and runs[n - 1] + runs[n] * window == ends do
      ends = runs[n - 1]
      remove(runs)
      remove(runs)
      n = n - 2
    end
    return ends
  end

  -- Adds `slots` adjacent slots from `begins` on, none of which is free already.
  local function insert(runs, begins, slots, window)
    begins, slots = not_passed(begins, slots, window)
    if slots == 0 then return end
    local i = 1
    while i < #runs and runs[i] < begins do i = i + 2 end
    local joined = i < #runs and begins + slots * window == runs[i] and slots + runs[i + 1]
    if joined and joined <= 4294967295 then
      slots = joined
      remove(runs, i)
      remove(runs, i)
    end
    joined = i > 1 and runs[i - 2] + runs[i - 1] * window == begins and runs[i - 1] + slots
    if joined and joined <= 4294967295 then
      i = i - 2
      begins, slots = runs[i], joined
      remove(runs, i)
      remove(runs, i)
    end
    add(runs, i, slots)
    add(runs, i, begins)
    if #runs > 64 then
      remove(runs, 1)
      remove(runs, 1)
    end
  end

  return {
    read = read, write = write, count_until = count_until, first_fit = first_fit, take = take,
    last_taken = last_taken, trim_end = trim_end, insert = insert,
  }
end
