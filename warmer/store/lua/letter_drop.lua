local dead, size = unpack(KEYS)
local ids = unpack(ARGV)

-- Remove letters; `ids`: JSON list. Atomic with the count of their bytes.
--
-- returns DROPPED, how many were there

local dropped = 0
for _, id in ipairs(cjson.decode(ids)) do
    local found = redis.call("XRANGE", dead, id, id)[1]
    if found then
        local bytes = 512
        for at = 1, #found[2], 2 do
            local name = found[2][at]
            if name == "payload" or name == "key" then bytes = bytes + #found[2][at + 1] end
        end
        redis.call("XDEL", dead, id)
        redis.call("DECRBY", size, bytes)
        dropped = dropped + 1
    end
end
if redis.call("XLEN", dead) == 0 then redis.call("DEL", size) end
return { "DROPPED", dropped }
