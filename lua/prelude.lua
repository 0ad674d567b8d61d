-- Every script begins with this line, then the algorithms, then what it does with them.
local algorithms = {}
