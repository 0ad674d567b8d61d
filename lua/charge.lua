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
-- Every write sets a TTL: the time until the record means nothing, and SLACK.
local FIELDS = 5
local SLACK = 10000

local now = tonumber(ARGV[1])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Read each record once, then decide: `asked` adds up what this request wants of it so far.
local records, charges, all = {}, {}, true
for i, key in ipairs(KEYS) do
  local at = 2 + (i - 1) * FIELDS
  local record = records[key]
  if not record then
    local algorithm = algorithms[ARGV[at]]
    local quota = {
      limit = tonumber(ARGV[at + 2]),
      window = tonumber(ARGV[at + 3]),
      resolution = tonumber(ARGV[at + 4]),
    }
    local raw = redis.call('GET', key)
    record = {algorithm = algorithm, asked = 0, reading = algorithm.read(raw, quota, now)}
    records[key] = record
  end
  local cost = tonumber(ARGV[at + 1])
  record.asked = record.asked + cost
  local admitted = record.algorithm.decide(record.reading, record.asked)
  charges[i] = {record = record, cost = cost, asked = record.asked, admitted = admitted}
  all = all and admitted
end

local reply = {now}
for i, charge in ipairs(charges) do
  local record = charge.record
  local remaining, used, reset, retry
  if all then
    remaining, used, reset = record.algorithm.charge(record.reading, charge.cost)
    retry = -1
  else
    remaining, used, reset, retry = record.algorithm.tell(record.reading, charge.asked)
  end
  local at = 2 + (i - 1) * FIELDS
  reply[at], reply[at + 1], reply[at + 2] = charge.admitted and 1 or 0, remaining, used
  reply[at + 3], reply[at + 4] = reset, retry
end

for key, record in pairs(records) do
  if record.reading.dirty then
    local raw, expires_at = record.algorithm.write(record.reading)
    redis.call('SET', key, raw, 'PX', string.format('%.0f', math.max(0, expires_at - now) + SLACK))
  end
end
return reply
