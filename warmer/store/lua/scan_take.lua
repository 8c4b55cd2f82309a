local asks, scan = unpack(KEYS)
local owner, lease_ms, now_ms = unpack(ARGV)

-- Take the scan for `lease_ms`: one that was begun where it stands, else a new one for all that
-- is asked for by now.
--
-- Atomic, because two workers would scan at once, or an asking between the list and its copy
-- would be taken for one that the scan covers.
--
-- returns TAKEN, cursor, run_id, [field, record, ...] | BUSY | NOTHING

local function clock()
    if now_ms and now_ms ~= "" then return tonumber(now_ms) end
    local time = redis.call("TIME")
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

local now = clock()
local holder, until_ms = unpack(redis.call("HMGET", scan, "owner", "until"))
if holder and holder ~= owner and tonumber(until_ms) > now then
    return { "BUSY" }
end
if redis.call("HEXISTS", scan, "asks") == 0 then
    local flat = redis.call("HGETALL", asks)
    if #flat == 0 then
        return { "NOTHING" }
    end
    redis.call("HSET", scan, "asks", cmsgpack.pack(flat), "cursor", "0", "run_id", "")
end
redis.call("HSET", scan, "owner", owner, "until", string.format("%.0f", now + lease_ms))
local cursor, run_id, packed = unpack(redis.call("HMGET", scan, "cursor", "run_id", "asks"))
return { "TAKEN", cursor, run_id, cmsgpack.unpack(packed) }
