-- Every script begins with this, then the algorithms, then `record.lua`, then what it does with them.
local algorithms, call, try = {}, redis.call, redis.pcall
