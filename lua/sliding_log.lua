-- The sliding log: twin of crates/limit/src/sliding_log.rs; prelude.lua describes the functions.
--
-- Record: a list. Its last element is newest_at (6 bytes, ms), reset_at (6 bytes, ms), total (4 bytes: the
-- total of all charges, modulo 2^32), the number of elements before it (4 bytes), and a block. The elements
-- before it are blocks of exactly 254 entries. A block is its base (4 bytes) and its entries: a time (4
-- bytes, ms modulo 2^32) and the total of the charges before it, less the base (4 bytes). Anything else is
-- read as a new caller's record.
--
-- So a call reads and writes a few blocks of 2 KB, however long the log is. A binary search over the blocks,
-- and then in one block, finds the oldest live entry. Expired blocks are trimmed off the list. A refund
-- changes the bases of the blocks after its entry; if it removes the entry, the first entry of each later
-- block moves to the block before.
algorithms.sliding_log = function()
  -- Four blocks fill a node of Redis's list, which holds 8 KB.
  local MODULUS, BLOCK, decode = 4294967296, 254, struct.unpack

  -- Block `index`, counted from 0; the last one is part of the last element.
  local function block(view, index)
    local found = view.blocks[index]
    if not found then
      found = call('LINDEX', view.key, index)
      if not found or #found ~= 4 + 8 * BLOCK then
        -- Malformed: this call deletes the record and fails, and the next one finds no record.
        try('UNLINK', view.key)
        error('malformed record of a sliding log: deleted')
      end
      view.blocks[index] = found
    end
    return found
  end

  -- (origin - x) modulo 2^32, where x is the time of entry `entry` (counted from 1) in block `index` or, if
  -- `by_total`, the total of the charges before that entry. Both grow from entry to entry.
  local function distance(view, index, entry, origin, by_total)
    local found = block(view, index)
    if not by_total then return (origin - decode('<I4', found, 8 * entry - 3)) % MODULUS end
    return (origin - decode('<I4', found, 8 * entry + 1) - decode('<I4', found)) % MODULUS
  end

  -- The first entry with a `distance` below `bound`, from entry `entry` of block `index` on. Returns its block
  -- and its index in the block, which may be one past the end. It is often close to the start, so the search
  -- in a block doubles its steps before it halves them (galloping search).
  local function search(view, index, entry, origin, bound, by_total)
    if distance(view, index, entry, origin, by_total) < bound then return index, entry end
    local low, high, middle = index, view.last_block + 1, index + 1
    while low + 1 < high do
      if distance(view, middle, 1, origin, by_total) < bound then high = middle else low = middle end
      middle = (low + high - (low + high) % 2) / 2
    end
    local found_index, found, field = low, block(view, low), by_total and 1 or -3
    if by_total then origin = origin - decode('<I4', found) end
    low, high = found_index == index and entry or 1, (#found - 4) / 8 + 1
    local step = 1
    while low + 1 < high do
      middle = low + step
      if middle >= high then middle = (low + high - (low + high) % 2) / 2 end
      if (origin - decode('<I4', found, 8 * middle + field)) % MODULUS < bound then
        high, step = middle, MODULUS
      else
        low, step = middle, step * 2
      end
    end
    return found_index, high
  end

  -- When entry `entry` of block `index` expires.
  local function expiry(view, index, entry)
    return view.now - distance(view, index, entry, view.clock) + view.window
  end

  -- The first ms from now on at which `cost` would be admitted if nothing else were charged; -1: `cost` is
  -- above the quota.
  local function retry_at(view, cost)
    local room = view.limit - cost
    if room < 0 then return -1 end
    if view.used <= room then return view.now end
    local index, entry = search(view, view.first_block, view.first_entry, view.total, room + 1, true)
    return expiry(view, index, entry - 1)
  end

  -- The stored reset_at if it is in the future; else when the oldest live entry expires, or now if none is
  -- live.
  local function reset_at(view)
    if view.reset_at > view.now then return view.reset_at end
    return view.live and expiry(view, view.first_block, view.first_entry) or view.now
  end

  local function set_usage(view, used)
    local left = view.limit - used
    view.used, view.remaining = used, left > 0 and left or 0
  end

  local function read(raw, now, limit, window, _, _, key)
    -- `first_block`, `first_entry`: the block of the oldest live entry, and its index in the block. `clock`:
    -- now, in the form in which entries store times.
    local view = {
      limit = limit, window = window, now = now, key = key, newest_at = 0, reset_at = 0, total = 0,
      blocks = {}, last_block = 0, first_block = 0, first_entry = 1, clock = now % MODULUS, exists = raw,
      live = false, dirty = false,
    }
    local used = 0
    if raw and #raw >= 32 and (#raw - 24) % 8 == 0 and #raw <= 24 + 8 * BLOCK then
      local newest_at, reset, total, last_index = struct.unpack('<I6I6I4I4', raw)
      -- If the clock steps back by at most 5 s, the record's time stands still. After a larger step, the
      -- record moves back with the clock: the times of the entries are relative to newest_at.
      if newest_at - now > 5000 then
        reset = reset - (newest_at - now)
        if reset < 0 then reset = 0 end
        newest_at, view.dirty = now, true
      elseif newest_at > now then
        now = newest_at
      end
      view.now, view.newest_at, view.reset_at = now, newest_at, reset
      view.total, view.last_block = total, last_index
      view.blocks[last_index] = string.sub(raw, 21)
      view.clock = (struct.unpack('<I4', raw, #raw - 7) + now - newest_at) % MODULUS
      if now - newest_at < window then
        local index, entry = search(view, 0, 1, view.clock, window)
        if entry > BLOCK then index, entry = index + 1, 1 end
        view.first_block, view.first_entry, view.live = index, entry, true
        used = distance(view, index, entry, total, true)
      end
    end
    set_usage(view, used)
    return view
  end

  local function decide(view, cost)
    local left, reset, retry = view.remaining, reset_at(view), -1
    if left == 0 then
      retry = retry_at(view, 1)
      if retry > reset then reset = retry end
    end
    if cost > left and cost ~= 1 then retry = retry_at(view, cost) end
    return view.used, reset, cost <= left and -1 or retry
  end

  -- Adds an entry for now, or reuses the newest, and removes the expired entries of the last block.
  local function append(view)
    local blocks, last_index, total, clock = view.blocks, view.last_block, view.total, view.clock
    if not view.live then
      view.fresh, view.live, view.last_block, view.first_block, view.first_entry = true, true, 0, 0, 1
      view.blocks = {[0] = struct.pack('<I4I4I4', total, clock, 0)}
      return
    end
    local last = blocks[last_index]
    if view.first_block == last_index and view.first_entry > 1 then
      last = string.sub(last, 1, 4) .. string.sub(last, 8 * view.first_entry - 3)
      view.first_entry = 1
    end
    local before = (total - decode('<I4', last)) % MODULUS
    if view.now == view.newest_at then
      blocks[last_index] = last
    elseif decode('<I4', last, #last - 3) == before then
      -- The newest entry's charges were refunded: it is reused.
      blocks[last_index] = string.sub(last, 1, -9) .. struct.pack('<I4I4', clock, before)
    elseif #last < 4 + 8 * BLOCK then
      blocks[last_index] = last .. struct.pack('<I4I4', clock, before)
    else
      blocks[last_index], blocks[last_index + 1] = last, struct.pack('<I4I4I4', total, clock, 0)
      view.last_block, view.pushed = last_index + 1, true
    end
  end

  local function charge(view, cost)
    if cost == 0 then return decide(view, 0) end
    local requested = cost
    append(view)
    if cost > MODULUS - 1 - view.used then cost = MODULUS - 1 - view.used end
    view.total, view.newest_at, view.dirty = (view.total + cost) % MODULUS, view.now, true
    view.appended = true
    set_usage(view, view.used + cost)
    local reset = reset_at(view)
    if view.remaining < requested then
      local retry = retry_at(view, requested)
      if retry < 0 then retry = retry_at(view, 1) end
      if retry > reset then reset = retry end
    end
    view.reset_at = reset
    return view.used, reset
  end

  local function refund(view, charged_at, cost)
    local age, blocks, last_index = view.now - charged_at, view.blocks, view.last_block
    if not view.live or age < 0 or age >= view.window then return end
    local index, entry = search(view, view.first_block, view.first_entry, view.clock, age + 1)
    local size, last = (#block(view, index) - 4) / 8, (#blocks[last_index] - 4) / 8
    if entry > size then index, entry, size = index + 1, 1, index + 1 < last_index and BLOCK or last end
    if index > last_index or distance(view, index, entry, view.clock) ~= age then return end
    -- A refund rewrites at most 4,096 entries: its own and those after it.
    local later_entries = index == last_index and 0 or last + BLOCK * (last_index - index - 1)
    if later_entries + size - entry + 1 > 4096 then return end
    local charged, after = distance(view, index, entry, view.total, true), 0
    if entry < size then
      after = distance(view, index, entry + 1, view.total, true)
    elseif index < last_index then
      after = distance(view, index + 1, 1, view.total, true)
    end
    if cost > charged - after then cost = charged - after end
    if cost == 0 then return end
    -- `reset_at` must not move back with the entries from which it was computed: store it.
    local _, reset = decide(view, 0)
    view.reset_at = reset

    -- An empty entry is removed, unless it is the newest: the times of the others are relative to its time.
    local removed = cost == charged - after and (index < last_index or entry < size)
    local kept = string.sub(blocks[index], 1, removed and 8 * entry - 4 or 8 * entry + 4)
    if entry < size then
      local layout = '<' .. string.rep('I4', 2 * (size - entry))
      local rest = {struct.unpack(layout, blocks[index], 8 * entry + 5)}
      for field = 2, 2 * (size - entry), 2 do rest[field] = rest[field] - cost end
      rest[2 * (size - entry) + 1] = nil
      kept = kept .. struct.pack(layout, unpack(rest))
    end
    blocks[index] = kept
    for later_index = index + 1, last_index do
      local later, from = block(view, later_index), 5
      local base = (decode('<I4', later) - cost) % MODULUS
      if removed then
        -- Its first entry becomes the last one of the block before it.
        local earlier, before = blocks[later_index - 1], base + decode('<I4', later, 9)
        blocks[later_index - 1] = earlier .. string.sub(later, 5, 8)
          .. struct.pack('<I4', (before - decode('<I4', earlier)) % MODULUS)
        from = 13
      end
      blocks[later_index] = struct.pack('<I4', base) .. string.sub(later, from)
    end
    if #blocks[last_index] == 4 then view.last_block, view.popped = last_index - 1, true end
    view.total, view.changed, view.dirty = (view.total - cost) % MODULUS, index, true
    set_usage(view, view.used - cost)
  end

  -- Refunds up to `cost` units, those of the newest 128 entries first: fewer than a block has, so that at most one
  -- block becomes empty.
  local function release(view, cost)
    if not view.live then return end
    local index = view.last_block
    local entry = (#view.blocks[index] - 4) / 8
    for _ = 1, 128 do
      if entry == 0 then index, entry = index - 1, BLOCK end
      local is_expired = index == view.first_block and entry < view.first_entry
      if cost == 0 or index < view.first_block or is_expired then return end
      -- Nothing is charged to the newer entries any more.
      local charged = distance(view, index, entry, view.total, true)
      local part = cost < charged and cost or charged
      if part > 0 then
        refund(view, view.now - distance(view, index, entry, view.clock), part)
        cost = cost - part
      end
      entry = entry - 1
    end
  end

  local function write(view, key)
    local newest_at, reset, last_index, blocks = view.newest_at, view.reset_at, view.last_block, view.blocks
    -- Blocks whose entries have all expired are trimmed off. Redis frees a whole list node at once.
    local dead = view.appended and view.first_block or 0
    local last = struct.pack('<I6I6I4I4', newest_at, reset, view.total, last_index - dead) .. blocks[last_index]
    if view.fresh then
      if view.exists then call('UNLINK', key) end
      call('RPUSH', key, last)
    else
      for index = view.changed or last_index, last_index - 1 do
        call('LSET', key, index, blocks[index])
      end
      if view.pushed then
        call('LSET', key, -1, blocks[last_index - 1])
        call('RPUSH', key, last)
      else
        if view.popped then call('RPOP', key) end
        call('LSET', key, -1, last)
      end
      if dead > 0 then call('LTRIM', key, dead, -1) end
    end
    local expires_at = newest_at + view.window
    return false, reset > expires_at and reset or expires_at
  end

  return {list = true, read = read, decide = decide, charge = charge, refund = refund, release = release, write = write}
end
