local asks, scan = unpack(KEYS)
local owner = unpack(ARGV)

-- End a scan that has seen all names: forget what was asked for before it began.
--
-- Atomic, because what is asked for anew between the look and the removal would be lost.
--
-- returns DONE, number still asked for | LOST

if redis.call("HGET", scan, "owner") ~= owner then
    return { "LOST" }
end
local flat = cmsgpack.unpack(redis.call("HGET", scan, "asks"))
for at = 1, #flat, 2 do
    if redis.call("HGET", asks, flat[at]) == flat[at + 1] then
        redis.call("HDEL", asks, flat[at])
    end
end
redis.call("UNLINK", scan)
return { "DONE", redis.call("HLEN", asks) }
