local hooks, seen = unpack(KEYS)
local identity, fields, window_ms, max_hooks, max_seen, now_ms = unpack(ARGV)

-- Keep a deploy hook, unless its delivery is known already.
--
-- `fields`: JSON object of texts. `identity` "": its deliveries cannot be told apart.
-- Atomic, because a delivery that is known but not kept would be lost.
--
-- returns KEPT | KNOWN

local function clock()
    if now_ms and now_ms ~= "" then return tonumber(now_ms) end
    local time = redis.call("TIME")
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

local now = clock()
redis.call("ZREMRANGEBYSCORE", seen, "-inf", now - window_ms)
if identity ~= "" and redis.call("ZADD", seen, "NX", now, identity) == 0 then
    return { "KNOWN" }
end
redis.call("ZREMRANGEBYRANK", seen, 0, -max_seen - 1)
local flat = {}
for name, value in pairs(cjson.decode(fields)) do
    flat[#flat + 1] = name
    flat[#flat + 1] = value
end
redis.call("XADD", hooks, "MAXLEN", "~", max_hooks, "*", unpack(flat))
return { "KEPT" }
