-- The rolling window of CALLR's article, for comparison: a sorted set of all events.
--
-- KEYS[1]  the bucket
-- ARGV[1]  now, in seconds with a fraction
-- ARGV[2]  the window, in seconds
-- ARGV[3]  the limit
-- ARGV[4]  the event's id, unique at its time
-- Returns  1 if the event was added, 0 if the bucket was full
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1] - ARGV[2])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[1], ARGV[4])
redis.call('EXPIRE', KEYS[1], math.ceil(ARGV[2]))
return 1
