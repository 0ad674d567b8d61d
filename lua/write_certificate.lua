-- Writes a certificate that was ordered by ACME.
--
-- KEYS[1]  the certificate's lease: see `take_lease`
-- KEYS[2]  the certificates: a hash of their records
-- KEYS[3]  their versions: a hash
-- KEYS[4]  the failed orders: see `take_lease`
-- ARGV[1]  the owner of the lease
-- ARGV[2]  the certificate's name
-- ARGV[3]  the version that it replaces; empty: none
-- ARGV[4]  its own version
-- ARGV[5]  its record
-- Returns  1 if it was written. Returns 0 if another gateway has the lease, or has ordered another certificate since
local call = redis.call

local owner = call('GET', KEYS[1])
if owner ~= ARGV[1] then
  local version = call('HGET', KEYS[3], ARGV[2])
  local is_free = not owner or string.sub(owner, 1, 7) == 'paused '
  if not is_free or version and version ~= ARGV[3] then return 0 end
end
call('HSET', KEYS[2], ARGV[2], ARGV[5])
call('HSET', KEYS[3], ARGV[2], ARGV[4])
call('HDEL', KEYS[4], ARGV[2])
return 1
