-- Sets `now`, and reads and writes records. Part of every script that uses records.
--
-- KEYS[i]   the records; each script's own header describes them
-- ARGV[1]   now in ms, which only tests pass; 0: this server's clock
-- Returns   nothing; the script that follows does
--
-- Every write sets a TTL: the time until the record expires, plus 10 s. The TTL only frees memory.
local now = ARGV[1] + 0
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
end

-- Returns the algorithm with the tag ARGV[argument], and the view of the record. Quota, window, resolution
-- and option start at ARGV[argument + 2]. Adding 0 converts a number in ARGV from text.
local function read(key, argument)
  local algorithm = algorithms[ARGV[argument]]()
  local raw
  if algorithm.list then raw = try('LINDEX', key, -1) else raw = try('GET', key) end
  if raw and raw.err then
    -- A value of another type is read like a malformed record: as a new caller's record.
    if not string.find(raw.err, 'WRONGTYPE', 1, true) then error(raw.err) end
    raw = ''
  end
  return algorithm, algorithm.read(raw, now, ARGV[argument + 2] + 0, ARGV[argument + 3] + 0,
    ARGV[argument + 4] + 0, ARGV[argument + 5] + 0, key)
end

-- Returns true if a charge of `cost` fits, and its delay in ms.
local function fits(algorithm, view, cost)
  if cost > view.remaining then return false, 0 end
  if cost == 0 or not algorithm.wait then return true, 0 end
  local wait = algorithm.wait(view, cost)
  return wait ~= nil, wait or 0
end

-- Passes the TTL as a number: Redis converts it to text in full, but Lua's own conversion keeps 14 digits.
local function write(key, algorithm, view)
  local raw, expires_at = algorithm.write(view, key)
  local ttl = (expires_at > now and expires_at - now or 0) + 10000
  if raw then call('SET', key, raw, 'PX', ttl) else call('PEXPIRE', key, ttl) end
end
