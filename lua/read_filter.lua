-- Reads one generation of a throttle's filter, unless the gateway has it already.
--
-- KEYS[1]  the generation: a hash with `ts`, a whole number above 0 and below 2^53 - 1, and `value`
-- ARGV[1]  the ts of the gateway's copy; 0: it has none
-- ARGV[2]  the length of the gateway's copy, in bytes
-- ARGV[3]  the longest value to return, in bytes
-- Returns  an array of four: state, ts (0: none or malformed), length of the value in bytes, value (empty
--          unless the state is 2). States: 0 there is none, 1 equal to the gateway's copy, 2 another value,
--          3 longer than ARGV[3], 4 malformed
local call = redis.call

local kind = call('TYPE', KEYS[1]).ok
if kind == 'none' then return {0, 0, 0, ''} end
if kind ~= 'hash' then return {4, 0, 0, ''} end

local ts = call('HSTRLEN', KEYS[1], 'ts') <= 16 and call('HGET', KEYS[1], 'ts') or ''
local number = string.find(ts, '^[1-9]%d*$') and ts + 0 or 0
if number == 0 or number >= 9007199254740991 then return {4, 0, 0, ''} end

local length = call('HSTRLEN', KEYS[1], 'value')
if number == ARGV[1] + 0 and length == ARGV[2] + 0 then return {1, number, length, ''} end
if length > ARGV[3] + 0 then return {3, number, length, ''} end
local value = call('HGET', KEYS[1], 'value')
if not value then return {4, number, length, ''} end
return {2, number, length, value}
