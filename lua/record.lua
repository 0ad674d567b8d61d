-- How scripts tell the time, and read and write records: stands before each that does.
--
-- KEYS[i]   the records; each has its line in the script itself
-- ARGV[1]   now in ms; 0: this server's own clock (tests alone pass another)
-- Returns   nothing: the script that follows does
--
-- Every write sets a TTL: the time until the record means nothing, and 10 s. It only cleans up.
local now = ARGV[1] + 0
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
end

-- The algorithm whose tag is ARGV[at], and the record as it stands; quota, window, resolution and
-- option are ARGV[at + 2] and on. A number in ARGV is text until something is added to it.
local function read(key, at)
  local algorithm = algorithms[ARGV[at]]()
  local raw
  if algorithm.list then raw = try('LINDEX', key, -1) else raw = try('GET', key) end
  if raw and raw.err then
    -- What is there has another type: it is read as nothing that has a meaning.
    if not string.find(raw.err, 'WRONGTYPE', 1, true) then error(raw.err) end
    raw = ''
  end
  return algorithm, algorithm.read(raw, now, ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0,
    ARGV[at + 5] + 0, key)
end

-- Whether a charge of `cost` fits, and how long it would wait, in ms.
local function meet(algorithm, reading, cost)
  if cost > reading.remaining then return false, 0 end
  if cost == 0 or not algorithm.wait then return true, 0 end
  local wait = algorithm.wait(reading, cost)
  return wait ~= nil, wait or 0
end

-- Redis is given numbers, not text made of them: it writes them in full, where Lua stops at 14 digits.
local function write(key, algorithm, reading)
  local raw, expires_at = algorithm.write(reading, key)
  local ttl = (expires_at > now and expires_at - now or 0) + 10000
  if raw then call('SET', key, raw, 'PX', ttl) else call('PEXPIRE', key, ttl) end
end
