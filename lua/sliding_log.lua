-- The sliding log: twin of src/limit/sliding_log.rs; prelude.lua describes the functions.
--
-- Record: a list. Its last element is newest_at (6 bytes, ms), reset_at (6 bytes, ms), total (4 bytes: the
-- total of all charges, modulo 2^32), the number of elements before it (4 bytes), and a block. The elements
-- before it are blocks of exactly 254 entries. A block is its base (4 bytes) and its entries: a time (4
-- bytes, ms modulo 2^32) and the total of the charges before it, less the base (4 bytes). Anything else is
-- read as a new caller's record.
--
-- So a call reads and writes a few blocks of 2 KB, however long the log is: a binary search over the blocks
-- and then in one block finds the oldest live entry; expired blocks are trimmed off the list; a refund
-- changes the bases of the blocks after it.
algorithms.sliding_log = function()
  -- Four blocks fill a node of Redis's list, which has 8 KB.
  local M, BLOCK, decode = 4294967296, 254, struct.unpack

  -- Block `i`, counted from 0; the last one is part of the last element.
  local function block(reading, i)
    local found = reading.blocks[i]
    if not found then
      found = call('LINDEX', reading.key, i)
      if not found or #found ~= 4 + 8 * BLOCK then
        -- Malformed: this call deletes the record and fails, and the next one finds no record.
        try('UNLINK', reading.key)
        error('malformed record of a sliding log: deleted')
      end
      reading.blocks[i] = found
    end
    return found
  end

  -- origin - x modulo 2^32, where x is the time of entry `e` (counted from 1) of block `i` or, if `sums`, the
  -- total of the charges before it. Both grow from entry to entry.
  local function since(reading, i, e, origin, sums)
    local found = block(reading, i)
    if not sums then return (origin - decode('<I4', found, 8 * e - 3)) % M end
    return (origin - decode('<I4', found, 8 * e + 1) - decode('<I4', found)) % M
  end

  -- The first entry, from entry `e` of block `i` on, whose `since` is below `bound`: its block and its index
  -- there, which may be one past the block's end. It is often close to the start, so the search in a block
  -- doubles its steps before it halves them (galloping search).
  local function search(reading, i, e, origin, bound, sums)
    if since(reading, i, e, origin, sums) < bound then return i, e end
    local low, high, middle = i, reading.n + 1, i + 1
    while low + 1 < high do
      if since(reading, middle, 1, origin, sums) < bound then high = middle else low = middle end
      middle = (low + high - (low + high) % 2) / 2
    end
    local at, found, field = low, block(reading, low), sums and 1 or -3
    if sums then origin = origin - decode('<I4', found) end
    low, high = at == i and e or 1, (#found - 4) / 8 + 1
    local step = 1
    while low + 1 < high do
      middle = low + step
      if middle >= high then middle = (low + high - (low + high) % 2) / 2 end
      if (origin - decode('<I4', found, 8 * middle + field)) % M < bound then
        high, step = middle, M
      else
        low, step = middle, step * 2
      end
    end
    return at, high
  end

  -- When entry `e` of block `i` expires.
  local function expiry(reading, i, e)
    return reading.now - since(reading, i, e, reading.clock) + reading.window
  end

  -- The first ms from now on at which `cost` would be admitted if nothing else were charged; -1: it is above
  -- the quota.
  local function retry_at(reading, cost)
    local room = reading.limit - cost
    if room < 0 then return -1 end
    if reading.used <= room then return reading.now end
    local i, e = search(reading, reading.i, reading.e, reading.total, room + 1, true)
    return expiry(reading, i, e - 1)
  end

  -- The stored reset_at if it is in the future; else when the oldest live entry expires, or now if none is
  -- live.
  local function reset_at(reading)
    if reading.reset_at > reading.now then return reading.reset_at end
    return reading.live and expiry(reading, reading.i, reading.e) or reading.now
  end

  local function set_usage(reading, used)
    local left = reading.limit - used
    reading.used, reading.remaining = used, left > 0 and left or 0
  end

  local function read(raw, now, limit, window, _, _, key)
    local reading = {
      limit = limit, window = window, now = now, key = key, newest_at = 0, reset_at = 0, total = 0, n = 0,
      blocks = {}, i = 0, e = 1, clock = now % M, exists = raw, live = false, dirty = false,
    }
    local used = 0
    if raw and #raw >= 32 and (#raw - 24) % 8 == 0 and #raw <= 24 + 8 * BLOCK then
      local newest_at, reset, total, n = struct.unpack('<I6I6I4I4', raw)
      -- A record's time never runs backwards, unless the clock was set back: then it moves back with the
      -- clock, and the entries, whose times are relative to newest_at, with it.
      if newest_at - now > 5000 then
        reset = reset - (newest_at - now)
        if reset < 0 then reset = 0 end
        newest_at, reading.dirty = now, true
      elseif newest_at > now then
        now = newest_at
      end
      reading.now, reading.newest_at, reading.reset_at = now, newest_at, reset
      reading.total, reading.n = total, n
      reading.blocks[n] = string.sub(raw, 21)
      reading.clock = (struct.unpack('<I4', raw, #raw - 7) + now - newest_at) % M
      if now - newest_at < window then
        local i, e = search(reading, 0, 1, reading.clock, window)
        if e > BLOCK then i, e = i + 1, 1 end
        reading.i, reading.e, reading.live = i, e, true
        used = since(reading, i, e, total, true)
      end
    end
    set_usage(reading, used)
    return reading
  end

  local function decide(reading, cost)
    local left, reset, retry = reading.remaining, reset_at(reading), -1
    if left == 0 then
      retry = retry_at(reading, 1)
      if retry > reset then reset = retry end
    end
    if cost > left and cost ~= 1 then retry = retry_at(reading, cost) end
    return reading.used, reset, cost <= left and -1 or retry
  end

  -- Adds an entry for now, and removes the expired entries of the last block.
  local function append(reading)
    local blocks, n, total, clock = reading.blocks, reading.n, reading.total, reading.clock
    if not reading.live then
      reading.fresh, reading.live, reading.n, reading.i, reading.e = true, true, 0, 0, 1
      reading.blocks = {[0] = struct.pack('<I4I4I4', total, clock, 0)}
      return
    end
    local last = blocks[n]
    if reading.i == n and reading.e > 1 then
      last = string.sub(last, 1, 4) .. string.sub(last, 8 * reading.e - 3)
      reading.e = 1
    end
    if reading.now == reading.newest_at then
      blocks[n] = last
    elseif #last < 4 + 8 * BLOCK then
      local before = (total - struct.unpack('<I4', last)) % M
      blocks[n] = last .. struct.pack('<I4I4', clock, before)
    else
      blocks[n], blocks[n + 1] = last, struct.pack('<I4I4I4', total, clock, 0)
      reading.n, reading.pushed = n + 1, true
    end
  end

  local function charge(reading, cost)
    if cost == 0 then return decide(reading, 0) end
    local requested = cost
    append(reading)
    if cost > M - 1 - reading.used then cost = M - 1 - reading.used end
    reading.total, reading.newest_at, reading.dirty = (reading.total + cost) % M, reading.now, true
    reading.appended = true
    set_usage(reading, reading.used + cost)
    local reset = reset_at(reading)
    if reading.remaining < requested then
      local retry = retry_at(reading, requested)
      if retry < 0 then retry = retry_at(reading, 1) end
      if retry > reset then reset = retry end
    end
    reading.reset_at = reset
    return reading.used, reset
  end

  local function refund(reading, charged_at, cost)
    local age, blocks, n = reading.now - charged_at, reading.blocks, reading.n
    if not reading.live or age < 0 or age >= reading.window then return end
    local i, e = search(reading, reading.i, reading.e, reading.clock, age + 1)
    local size, last = (#block(reading, i) - 4) / 8, (#blocks[n] - 4) / 8
    if e > size then i, e, size = i + 1, 1, i + 1 < n and BLOCK or last end
    if i > n or since(reading, i, e, reading.clock) ~= age then return end
    if (i == n and 0 or last + BLOCK * (n - i - 1)) + size - e + 1 > 4096 then return end
    local charged, after = since(reading, i, e, reading.total, true), 0
    if e < size then
      after = since(reading, i, e + 1, reading.total, true)
    elseif i < n then
      after = since(reading, i + 1, 1, reading.total, true)
    end
    if cost > charged - after then cost = charged - after end
    if cost == 0 then return end
    -- `reset_at` must not move back with the entries from which it was computed: store it.
    local _, reset = decide(reading, 0)
    reading.reset_at = reset

    if e < size then
      local layout = '<' .. string.rep('I4', 2 * (size - e))
      local rest = {struct.unpack(layout, blocks[i], 8 * e + 5)}
      for at = 2, 2 * (size - e), 2 do rest[at] = rest[at] - cost end
      rest[2 * (size - e) + 1] = nil
      blocks[i] = string.sub(blocks[i], 1, 8 * e + 4) .. struct.pack(layout, unpack(rest))
    end
    for at = i + 1, n do
      local later = block(reading, at)
      local base = (struct.unpack('<I4', later) - cost) % M
      blocks[at] = struct.pack('<I4', base) .. string.sub(later, 5)
    end
    reading.total, reading.changed, reading.dirty = (reading.total - cost) % M, i, true
    set_usage(reading, reading.used - cost)
  end

  local function write(reading, key)
    local newest_at, reset, n, blocks = reading.newest_at, reading.reset_at, reading.n, reading.blocks
    -- Blocks that have expired as a whole are trimmed off, several at a time with the nodes of the list.
    local dead = reading.appended and reading.i or 0
    local last = struct.pack('<I6I6I4I4', newest_at, reset, reading.total, n - dead) .. blocks[n]
    if reading.fresh then
      if reading.exists then call('UNLINK', key) end
      call('RPUSH', key, last)
    else
      for at = reading.changed or n, n - 1 do call('LSET', key, at, blocks[at]) end
      if reading.pushed then
        call('LSET', key, -1, blocks[n - 1])
        call('RPUSH', key, last)
      else
        call('LSET', key, -1, last)
      end
      if dead > 0 then call('LTRIM', key, dead, -1) end
    end
    local expires_at = newest_at + reading.window
    return false, reset > expires_at and reset or expires_at
  end

  return {list = true, read = read, decide = decide, charge = charge, refund = refund, write = write}
end
