-- The slots of a leaky bucket that were freed before others that are taken: twin of src/limit/holes.rs,
-- function for function.
--
-- In a record: a run each, the soonest first: `at` (6 bytes, ms), fraction (4 bytes), slots (4 bytes); its
-- first slot begins at + fraction / rate ms after the epoch. In a reading: an array in which each run is
-- two numbers, where it begins, in units of 1 / rate ms after now, and its slots. A slot is `window` units.
--
-- Made only where a record has such slots, or gets some.
algorithms.holes = function()
  local remove, insert = table.remove, table.insert

  -- What of a run begins from now on.
  local function usable(begins, slots, window)
    if begins < 0 then return begins + window, slots - 1 end
    return begins, slots
  end

  -- What of a run has not passed: where it begins, and its slots; 0, if all has.
  local function rest(begins, slots, window)
    if begins >= 0 then return begins, slots end
    local passed = (-begins - -begins % window) / window
    if passed >= slots then return begins, 0 end
    return begins + passed * window, slots - passed
  end

  -- Those of a packed record, from byte `from` on. What overlaps, or lies behind `ahead`, is none of ours.
  local function read(raw, from, now, rate, window, ahead)
    local holes, n, free = {}, 0, -math.huge
    while from < #raw do
      local at, fraction, slots = struct.unpack('<I6I4I4', raw, from)
      from = from + 14
      local begins = (at - now) * rate + fraction
      local ends = begins + slots * window
      if begins < free or ends > ahead or fraction >= rate then return {} end
      free = ends
      begins, slots = rest(begins, slots, window)
      if slots > 0 then
        holes[n + 1], holes[n + 2] = begins, slots
        n = n + 2
      end
    end
    return holes
  end

  local function write(holes, now, rate)
    local raw = {}
    for i = 1, #holes, 2 do
      local fraction = holes[i] % rate
      raw[i] = struct.pack('<I6I4I4', now + (holes[i] - fraction) / rate, fraction, holes[i + 1])
      raw[i + 1] = ''
    end
    return table.concat(raw)
  end

  -- How many slots begin from now on and no later than `latest`.
  local function free(holes, latest, rate, window)
    if latest < rate then return 0 end
    local sum = 0
    for i = 1, #holes, 2 do
      local begins, slots = usable(holes[i], holes[i + 1], window)
      if begins > latest then break end
      local most = (latest - begins - (latest - begins) % window) / window + 1
      sum = sum + (slots < most and slots or most)
    end
    return sum
  end

  -- Where the first run begins that has `cost` slots from now on, if one has. Within the next ms no run is
  -- of use: in whole ms it may have passed when a client that was told of it comes.
  local function first(holes, cost, latest, rate, window)
    if latest < rate then return end
    for i = 1, #holes, 2 do
      local begins, slots = usable(holes[i], holes[i + 1], window)
      if slots >= cost then return begins end
    end
  end

  -- Takes `cost` slots from `begins` on, as `first` told it. A slot under way before them stays.
  local function take(holes, begins, cost, window)
    for i = 1, #holes, 2 do
      local from, slots = usable(holes[i], holes[i + 1], window)
      if from == begins and slots >= cost then
        local run = holes[i]
        remove(holes, i)
        remove(holes, i)
        if slots > cost then
          insert(holes, i, slots - cost)
          insert(holes, i, begins + cost * window)
        end
        if run < begins then
          insert(holes, i, 1)
          insert(holes, i, run)
        end
        return
      end
    end
  end

  -- The latest place at or before `begins` for `length` units of which none is free already.
  local function place(holes, begins, length, window)
    for i = #holes - 1, 1, -2 do
      if holes[i] + holes[i + 1] * window <= begins then break end
      if holes[i] - length < begins then begins = holes[i] - length end
    end
    return begins
  end

  -- Where the taken slots end, if those from `ends` on are not taken any more.
  local function absorb(holes, ends, window)
    local n = #holes
    while n > 0 and holes[n - 1] + holes[n] * window == ends do
      ends = holes[n - 1]
      remove(holes)
      remove(holes)
      n = n - 2
    end
    return ends
  end

  -- Adds `slots` that begin at `begins`, none of which is here.
  local function add(holes, begins, slots, window)
    begins, slots = rest(begins, slots, window)
    if slots == 0 then return end
    local at = 1
    while at < #holes and holes[at] < begins do at = at + 2 end
    local joined = at < #holes and begins + slots * window == holes[at] and slots + holes[at + 1]
    if joined and joined <= 4294967295 then
      slots = joined
      remove(holes, at)
      remove(holes, at)
    end
    joined = at > 1 and holes[at - 2] + holes[at - 1] * window == begins and holes[at - 1] + slots
    if joined and joined <= 4294967295 then
      at = at - 2
      begins, slots = holes[at], joined
      remove(holes, at)
      remove(holes, at)
    end
    insert(holes, at, slots)
    insert(holes, at, begins)
    if #holes > 64 then
      remove(holes, 1)
      remove(holes, 1)
    end
  end

  return {
    read = read, write = write, free = free, first = first, take = take, place = place, absorb = absorb,
    add = add,
  }
end
