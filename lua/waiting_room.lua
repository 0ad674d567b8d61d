-- Exchanges a gateway's counts of tickets with the waiting room of all gateways. Once a second, it moves the frontier,
-- up to which users may take places, over as many counted tickets as fill the free places. The twin of
-- crates/throttle/src/waiting_room/state.rs; lua/waiting_seat.lua gives out the places.
--
-- KEYS[1]  the state: a hash. Times are ms; `frontier` is a place, in us
-- KEYS[2]  the counts of the epoch before ARGV[2]: a hash of numbers of tickets by interval, and `base`, the second
--          from which intervals are measured
-- KEYS[3]  the counts of the epoch ARGV[2]
-- ARGV[1]  now in ms, which only tests pass; 0: this server's clock
-- ARGV[2]  the epoch; ARGV[3] its length, in s
-- ARGV[4]  the gateway's standing: 0 silent, 1 calm, 2 throttling by its operator, 3 throttling by its users
-- ARGV[5]  the number of active users; -1: not known; ARGV[6] the number that may be active
-- ARGV[7]  the gateway's own frontier; a lost state begins with it
-- ARGV[8]  for how long no place is given out after an outage, in ms
-- ARGV[9]  the TTL of the state, in s
-- ARGV[10] how far the frontier stays behind while all users are admitted, in ms: the longest head start
-- ARGV[11] the longest time between two requests of a waiting user, in ms
-- ARGV[12] the number of users whose first request is in flight at the gateway
-- ARGV[13] the number of requests since the last exchange whose turn it was, and that the closed room refused
-- ARGV[14] the number of counts for KEYS[2]; then each count: the second of its interval, and the tickets; then the
--          counts for KEYS[3]
-- Returns  an array of nine: frontier, base of the next epoch, time of the last standing 3, time at which all users were
--          last admitted, now, exchanges in the last step, tickets passed in all, users who may not be active yet, and
--          the waiting tickets by place as SECOND:TICKETS,...
local call = redis.call
local floor = math.floor
local NEW, MAX_DISTANCE = 1000, 131071
local STEP, SETTLE, REPORT_VALID, GAP = 1000, 3000, 3000, 5000
local PERIODS, GROWTH = 16, 1.1
local KNOWN_ELSEWHERE, ASKS_AGAIN, MEMORY, MIN_SHARE, ONE = 5, 3, 8, 1 / 1024, 1000000

local function number(text)
  local value = tonumber(text or 0)
  if not value or not (value >= 0 and value < 9007199254740992) then return 0 end
  return floor(value)
end
local function digits(value) return string.format('%.0f', value) end

-- Deletes a key that another program has overwritten, so that it can be written again.
for _, key in ipairs(KEYS) do
  local kind = call('TYPE', key).ok
  if kind ~= 'hash' and kind ~= 'none' then call('DEL', key) end
end

local now = ARGV[1] + 0
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
end
local epoch, length, standing, active = ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local max_active, own, hold = ARGV[6] + 0, ARGV[7] + 0, ARGV[8] + 0
local head_start, ask = ARGV[10] + 0, ARGV[11] + 0

local fields = call('HGETALL', KEYS[1])
local state = {}
for at = 1, #fields, 2 do state[fields[at]] = fields[at + 1] end
if #fields == 0 then
  local is_lost = standing >= 2 and floor(own / 1000000) < epoch * length
  state = {frontier = own, complete_from = is_lost and epoch + 2 or 0}
end
-- A value out of range counts as lost.
local stored = number(state.frontier)
local frontier = math.min(stored > 0 and stored or own, now * 1000)
local newest = number(state.epoch)
newest = newest > epoch + 1 and epoch or math.max(newest, epoch)
local next_epoch, next_base = number(state.next_epoch), number(state.next_base)
local throttled_at, demanded_at = number(state.throttled_at), number(state.demanded_at)
local calm_at = number(state.calm_at)
local calls = number(state.calls) + 1
local gateways, turns, pending = number(state.gateways), number(state.turns), number(state.pending)
local profile = state.profile or ''
local seats, passed, promised = number(state.seats), state.passed or '', state.promised or ''
local taken, refused, came = state.taken or '', state.refused or '', state.came or ''
local period_length = number(state.period_length)
local average_passed, average_came = number(state.average_passed), number(state.average_came)
local entering, entering_before = number(state.entering) + ARGV[12], number(state.entering_before)
local moved_at, held_until = number(state.moved_at), number(state.held_until)
local known = state.active and state.active ~= '' and number(state.active) or -1
known = math.max(known, active)

-- The counts of an epoch.
local function interval(index, base, second)
  local start = index * length
  if second >= start then return NEW + math.min(second - start, length - 1) end
  local distance = math.min(math.max(second - base, 0), MAX_DISTANCE)
  local shift = 0
  while floor(distance / 2 ^ shift) >= 128 do shift = shift + 1 end
  return shift * 64 + floor(distance / 2 ^ shift)
end
local function add(key, index, from, to)
  local base = call('HGET', key, 'base')
  if not base then
    base = next_epoch == index and next_base or floor(frontier / 1000000)
    call('HSET', key, 'base', digits(base))
    call('EXPIRE', key, length * 3 + 10)
  end
  base = number(base)
  for at = from, to, 2 do
    call('HINCRBY', key, digits(interval(index, base, ARGV[at] + 0)), ARGV[at + 1])
  end
end
local first = 15
local middle = first + ARGV[14] * 2
add(KEYS[3], epoch, first, first - 1)
add(KEYS[2], math.max(epoch - 1, 0), first, middle - 1)
add(KEYS[3], epoch, middle, #ARGV)

-- Adds to the last period of a text AT:NUMBER,...
local function add_last(text, at, new)
  if new == 0 then return text end
  local head, last, count = string.match(text, '^(.-),?(%d+):(%d+)$')
  if last and number(last) == at then text, new = head, new + number(count) end
  return text .. (text == '' and '' or ',') .. digits(at) .. ':' .. digits(new)
end

refused = add_last(refused, floor(now / 1000), ARGV[13] + 0)

local is_calm = false
if standing == 1 then
  is_calm = throttled_at > now or now - throttled_at > REPORT_VALID
elseif standing >= 2 then
  throttled_at = now
  if standing == 3 then demanded_at = now end
end

-- The intervals with tickets of one hash, in the order of places.
local function read(intervals, key, index, from)
  local all = call('HGETALL', key)
  local base, ids, counts, start = 0, {}, {}, index * length
  for at = 1, #all, 2 do
    if all[at] == 'base' then
      base = number(all[at + 1])
    else
      local id = number(all[at])
      if id >= from and id < NEW + length then
        ids[#ids + 1], counts[id] = id, number(all[at + 1])
      end
    end
  end
  table.sort(ids)
  for _, id in ipairs(ids) do
    local low, high
    if id >= NEW then
      low = start + id - NEW
      high = low + 1
    else
      local shift = math.min(math.max(floor(id / 64) - 1, 0), 10)
      low = base + (id - shift * 64) * 2 ^ shift
      high = math.min(low + 2 ^ shift, start)
      low = math.min(low, high - 1)
    end
    intervals[#intervals + 1] = {low, high, counts[id]}
  end
end

-- Moves the frontier over at most `wanted` tickets from before `settled`; returns by how many it moved less.
local function walk(wanted, settled)
  local intervals = {}
  read(intervals, KEYS[2], math.max(epoch - 1, 0), 0)
  read(intervals, KEYS[3], epoch, NEW)
  local left, waiting, shown, last, first_waiting = wanted, 0, 0, 0, nil
  local points = {}
  for _, own_interval in ipairs(intervals) do
    local low_second, high_second, tickets = own_interval[1], own_interval[2], own_interval[3]
    local low, high = low_second * 1000000, high_second * 1000000
    if high > frontier and tickets > 0 then
      local width, from = high - low, math.max(low, frontier)
      local rest = tickets * (high - from) / width
      if left > 0 and high_second <= settled then
        if rest <= left then
          left, frontier, rest = left - rest, high, 0
        else
          frontier, left = from + floor(left * width / tickets), 0
          rest = tickets * math.max(high - frontier, 0) / width
        end
      end
      if rest > 0 then
        first_waiting = first_waiting or low_second
        waiting, last = waiting + rest, high_second
        if waiting >= shown * GROWTH + 1 then
          shown = waiting
          points[#points + 1] = digits(high_second) .. ':' .. digits(floor(waiting))
        end
      end
    end
  end
  if waiting > shown and waiting >= 1 then
    points[#points + 1] = digits(last) .. ':' .. digits(floor(waiting))
  end
  profile = table.concat(points, ',')
  if next_epoch ~= epoch + 1 then
    local front = floor(frontier / 1000000)
    local earliest = floor(math.max(now - head_start, 0) / 1000)
    -- While counts are missing, older tickets may wait than the first that was counted.
    local oldest = epoch >= number(state.complete_from) and now >= held_until and first_waiting or front
    next_epoch, next_base = epoch + 1, math.max(math.min(oldest, earliest), front)
  end
  return left
end

-- The numbers by period of a text AT:NUMBER,... without the periods after `current` and the ones that ended `count`
-- periods ago; the sum of what is left; and the sum of the ended ones.
local function forget(text, current, count)
  local kept, sum, ended = {}, 0, 0
  for at, value in string.gmatch(text, '(%d+):(%d+)') do
    at, value = number(at), number(value)
    if at + count < current then
      ended = ended + value
    elseif at <= current then
      kept[#kept + 1] = digits(at) .. ':' .. digits(value)
      sum = sum + value
    end
  end
  return table.concat(kept, ','), sum, ended
end

if (moved_at > now or now - moved_at >= STEP) and newest == epoch then
  local gap = math.max(now - moved_at, 0)
  if moved_at > 0 and gap > GAP then
    held_until = now + math.min(gap, hold)
    passed, promised, came, average_passed, average_came = '', '', '', 0, 0
  end
  held_until = math.min(held_until, now + hold)
  moved_at, gateways, calls = now, calls, 0
  period_length = math.max(math.ceil(ask / PERIODS), 1)
  local second, period = floor(now / 1000), floor(now / period_length)
  local promises, arrived, ended, ended_came, asked_again, known_soon, _
  passed, _, ended = forget(passed, period, PERIODS)
  promised, promises = forget(promised, period, PERIODS)
  came, arrived, ended_came = forget(came, period, PERIODS)
  refused, asked_again = forget(refused, second, ASKS_AGAIN)
  taken, known_soon = forget(taken, second, KNOWN_ELSEWHERE)
  local span = math.max(ask * MEMORY, 1)
  local function decay(average)
    return average - math.min(floor(average * math.min(gap, span) / span), average)
  end
  average_passed = decay(average_passed) + ended * ONE
  average_came = decay(average_came) + ended_came * ONE
  known_soon = known_soon + math.max(entering, entering_before)
  entering, entering_before = 0, entering
  if is_calm then
    calm_at = now
    frontier = math.max(frontier, floor(math.max(now - head_start, 0) / 1000) * 1000000)
  end
  local is_settled = now >= epoch * length * 1000 + SETTLE
  local has_counts = epoch >= number(state.complete_from) and now >= held_until
  local share = (average_came + (arrived + asked_again + 1) * ONE) / (average_passed + ONE)
  share = math.max(math.min(share, 1), MIN_SHARE)
  local function expected() return asked_again + promises / ONE end
  local free, wanted = 0, 0
  seats = 0
  local is_open = known >= 0 and has_counts and not is_calm
  if is_open then
    free = math.max(max_active - known - known_soon, 0)
    seats = math.max(floor(free), floor(promises / ONE))
    if is_settled then wanted = floor(math.max(free - expected(), 0) / share) end
  end
  local new = math.ceil(wanted - walk(wanted, floor(math.max(now - SETTLE, 0) / 1000)))
  turns = turns + new
  passed = add_last(passed, period, new)
  local promise = floor(new * share * ONE)
  promised, promises = add_last(promised, period, promise), promises + promise
  pending = known_soon + math.ceil(is_open and math.min(expected(), free) or expected())
  known = -1
end

call('HSET', KEYS[1], 'frontier', digits(frontier), 'epoch', digits(newest),
  'complete_from', digits(number(state.complete_from)), 'next_epoch', digits(next_epoch),
  'next_base', digits(next_base), 'moved_at', digits(moved_at), 'held_until', digits(held_until),
  'throttled_at', digits(throttled_at), 'demanded_at', digits(demanded_at), 'calm_at', digits(calm_at),
  'active', known >= 0 and digits(known) or '', 'calls', digits(calls), 'gateways', digits(gateways),
  'turns', digits(turns), 'pending', digits(pending), 'profile', profile, 'seats', digits(seats),
  'taken', taken, 'refused', refused, 'passed', passed, 'promised', promised, 'came', came,
  'period_length', digits(period_length), 'average_passed', digits(average_passed),
  'average_came', digits(average_came), 'entering', digits(entering), 'entering_before', digits(entering_before))
call('EXPIRE', KEYS[1], ARGV[9])
local base = next_epoch == epoch + 1 and next_base or floor(frontier / 1000000)
return {digits(frontier), digits(base), digits(demanded_at), digits(calm_at), digits(now), digits(gateways),
  digits(turns), digits(pending), profile}
