-- The block: twin of crates/limit/src/block.rs; prelude.lua describes the functions.
--
-- Record: one packed string, little endian: ends_at (6 bytes, ms), refusals (4 bytes), 1 if the block has
-- begun (1 byte). Any other value, and a record past its ends_at, is read as a new caller's record.
algorithms.block = function()
  local function read(raw, now, limit, window, _, duration)
    local ends, refusals, begun, dirty = 0, 0, 0, false
    if raw and #raw == 11 then ends, refusals, begun = struct.unpack('<I6I4I1', raw) end
    local longest = begun == 1 and duration or window
    if ends > now + longest + 5000 then ends, dirty = now + longest, true end
    local live = ends > now
    local remaining = live and limit - refusals or limit
    if remaining < 0 or live and begun == 1 then remaining = 0 end
    return {
      limit = limit, window = window, duration = duration, now = now, live = live, refusals = refusals,
      begun = begun, ends_at = ends, remaining = remaining, dirty = dirty,
    }
  end

  local function decide(view, cost)
    local used, reset = 0, view.now
    if view.live then used, reset = view.refusals, view.ends_at end
    return used, reset, (cost <= view.remaining or cost > view.limit) and -1 or reset
  end

  -- An admitted request is no refusal.
  local function charge(view)
    return decide(view, 0)
  end

  -- Counts refusals of the limit.
  local function overdraw(view, refusals)
    if not view.live then
      view.live, view.refusals, view.begun, view.ends_at = true, 0, 0, view.now + view.window
    end
    local count = view.refusals + refusals
    if count > 4294967295 then count = 4294967295 end
    if count >= view.limit and view.begun == 0 then
      view.begun, view.ends_at = 1, view.now + view.duration
    end
    local left = view.limit - count
    view.refusals, view.dirty = count, true
    view.remaining = (view.begun == 1 or left < 0) and 0 or left
    return decide(view, 0)
  end

  local function refund() end

  local function write(view)
    return struct.pack('<I6I4I1', view.ends_at, view.refusals, view.begun), view.ends_at
  end

  return {
    read = read, decide = decide, charge = charge, overdraw = overdraw, refund = refund, write = write,
  }
end
