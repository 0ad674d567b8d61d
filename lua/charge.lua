-- Charges all limits of one request, or none: one call, one reading, one time.
--
-- KEYS[i]   the record of limit i. All share a hash tag, or live on one server.
-- ARGV[1]   now in ms; 0: this server's own clock (tests alone pass another).
-- ARGV[2+]  five values a limit, in the order of KEYS:
--             algorithm (its tag), cost, quota, window in ms, resolution
-- Returns   one flat array of integers: now, then five a limit:
--             admitted (1 or 0), remaining, used, reset_at (ms), retry_at (ms; -1: admitted, or never)
--
-- Two charges of one request on the same record are decided in order, the second on top of the first.
-- Every write sets a TTL: the time until the record means nothing, and 10 s.
local call = redis.call

local now = ARGV[1] + 0
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
end

-- The record of limit `i` as it stands. A number in ARGV is text until something is added to it.
local function read(i)
  local at = i * 5 - 3
  local algorithm = algorithms[ARGV[at]]
  local raw = call('GET', KEYS[i])
  return algorithm, algorithm.read(raw, now, ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0)
end

-- Redis is given numbers, not text made of them: it writes them in full, where Lua stops at 14 digits.
local function write(key, algorithm, reading)
  local raw, expires_at = algorithm.write(reading)
  call('SET', key, raw, 'PX', (expires_at > now and expires_at - now or 0) + 10000)
end

-- Most requests have one limit: the same as below, without the tables that keep several apart.
if #KEYS == 1 then
  local algorithm, reading = read(1)
  local cost = ARGV[3] + 0
  local admitted = cost <= reading.remaining
  local used, reset, retry = (admitted and algorithm.charge or algorithm.tell)(reading, cost)
  if reading.dirty then write(KEYS[1], algorithm, reading) end
  return {now, admitted and 1 or 0, reading.remaining, used, reset, admitted and -1 or retry}
end

-- Read each record once, then decide: `asked` adds up what this request wants of it so far.
local records, charges, all = {}, {}, true
for i, key in ipairs(KEYS) do
  local record = records[key]
  if not record then
    local algorithm, reading = read(i)
    record = {algorithm = algorithm, asked = 0, reading = reading}
    records[key] = record
  end
  local cost = ARGV[i * 5 - 2] + 0
  local asked = record.asked + cost
  record.asked = asked
  local admitted = asked <= record.reading.remaining
  charges[i] = {record = record, cost = cost, asked = asked, admitted = admitted}
  all = all and admitted
end

local reply = {now}
for i, charge in ipairs(charges) do
  local algorithm, reading = charge.record.algorithm, charge.record.reading
  local used, reset, retry
  if all then
    used, reset = algorithm.charge(reading, charge.cost)
    retry = -1
  else
    used, reset, retry = algorithm.tell(reading, charge.asked)
  end
  local at = i * 5 - 3
  reply[at], reply[at + 1], reply[at + 2] = charge.admitted and 1 or 0, reading.remaining, used
  reply[at + 3], reply[at + 4] = reset, retry
end

for key, record in pairs(records) do
  if record.reading.dirty then write(key, record.algorithm, record.reading) end
end
return reply
