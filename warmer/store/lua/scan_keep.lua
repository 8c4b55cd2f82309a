local scan = unpack(KEYS)
local owner, lease_ms, cursor, run_id, now_ms = unpack(ARGV)

-- Say how far the scan has come, and that its worker lives; `lease_ms` 0 leaves it to others.
--
-- Atomic, because a scan that another has taken over would be put back to where its first worker
-- stood.
--
-- returns KEPT | LOST

local function clock()
    if now_ms and now_ms ~= "" then return tonumber(now_ms) end
    local time = redis.call("TIME")
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

if redis.call("HGET", scan, "owner") ~= owner then
    return { "LOST" }
end
local until_ms = string.format("%.0f", clock() + lease_ms)
redis.call("HSET", scan, "cursor", cursor, "run_id", run_id, "until", until_ms)
return { "KEPT" }
