-- Reads one minute of a throttle's filter, unless the gateway knows it already.
--
-- KEYS[1]  the minute: a hash with `ts`, a whole number above 0 and below 2^53 - 1, and `value`
-- ARGV[1]  the ts that the gateway knows; 0: none
-- ARGV[2]  the length of the value that it knows, in bytes
-- ARGV[3]  the longest value that is sent, in bytes
-- Returns  a state, the ts (0: none that can be read), the value's length in bytes, the value (empty
--          but in state 2). States: 0 nothing is kept, 1 it is what the gateway knows, 2 another value,
--          3 too long to be sent, 4 not what gateways write
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
