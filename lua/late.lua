-- Charges what was charged elsewhere at some time, as far as it still counts: what `late` does in
-- src/limit. It stands before the script that corrects, so that those that decide do not pay for it.
--
-- KEYS, ARGV  those of the script that follows
-- Returns     nothing: that script does
--
-- By the tag of an algorithm: a function of its table, a reading, when (ms; it may be ahead), and how
-- much, above 0. Those that are not here have nothing to charge: a leaky bucket's slot is past, and
-- leases are taken anew by those who hold them.
local late = {}

late.sliding_window = function(algorithm, reading, charged_at, cost)
  local s, k, counts, start = reading.s, reading.k, reading.counts, reading.start
  local age = charged_at < start and (start - (charged_at - charged_at % s)) / s or 0
  if age > k then return end
  -- An older charge than those that count must not move back what was worked out from them.
  local _, told = algorithm.tell(reading, 0)
  reading.reset_at = told
  local count = counts[age + 3]
  if cost > 4294967295 - count then cost = 4294967295 - count end
  counts[age + 3] = count + cost
  reading.seen, reading.dirty = reading.now, true
  if age < k then
    reading.full = reading.full + cost
  else
    reading.old = count + cost
    reading.weighted = reading.old
    if not reading.strict then
      local share = reading.old * (start + s - reading.now) + s - 1
      reading.weighted = (share - share % s) / s
    end
  end
  local left = reading.limit - reading.full - reading.weighted
  reading.remaining = left > 0 and left or 0
  local _, reset = algorithm.tell(reading, 0)
  reading.reset_at = reset
end

late.sliding_log = function(algorithm, reading, charged_at, cost)
  local at = charged_at < reading.now and charged_at or reading.now
  if reading.now - at >= reading.window then return end
  algorithm.charge(reading, cost, at > reading.seen and at or reading.seen)
end

late.fixed_window = function(algorithm, reading, charged_at, cost)
  local now = reading.now + reading.window
  local own = charged_at < reading.now and charged_at + reading.window or now
  if own <= reading.now then return end
  if not reading.live then
    reading.live, reading.count, reading.reset_at = true, 0, own
  end
  -- A window that began ahead of a clock which stepped back has begun.
  if own >= reading.reset_at or own == now then algorithm.charge(reading, cost) end
end

late.token_bucket = function(algorithm, reading, charged_at, cost)
  local now, window, limit = reading.now, reading.window, reading.limit
  if now >= charged_at + window then return end
  if reading.owed > 0 then
    algorithm.charge(reading, cost)
    return
  end
  -- The point may stay behind now: what comes late, too, is put after it.
  local at, fraction = reading.at, reading.fraction
  if charged_at > now then charged_at = now end
  if at < charged_at then
    at, fraction = charged_at, 0
  elseif reading.rate ~= limit then
    at, fraction = at + (fraction > 0 and 1 or 0), 0
  end
  local most = limit * 140737488355328
  if most > 9007130535264256 then most = 9007130535264256 end
  local room = most - fraction
  room = (room - room % window) / window
  local owed = fraction + (cost > room and room or cost) * window
  fraction = owed % limit
  at = at + (owed - fraction) / limit
  reading.at, reading.fraction, reading.rate = at, fraction, limit
  reading.seen, reading.dirty = now, true
  local full = at + (fraction > 0 and 1 or 0)
  if full > reading.reset_at then reading.reset_at = full end
  owed = at >= now and (at - now) * limit + fraction or 0
  local used = (owed + (-owed) % window) / window
  local left = limit - used
  reading.owed, reading.used, reading.remaining = owed, used, left > 0 and left or 0
end
