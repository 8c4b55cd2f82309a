local lease = unpack(KEYS)
local token, lease_ms, now_ms = unpack(ARGV)

-- Let the lease run lease_ms from now, if it is still mine.
--
-- Atomic, because between the comparison and the new expiry the lease may end and another owner
-- may take it: the owner would prolong a lease that is not its own.
--
-- returns "RENEWED" | "LOST"

local function digits(number)
    return string.format("%.0f", number)
end

local function server_us()
    if now_ms and now_ms ~= "" then
        return tonumber(now_ms) * 1000
    end
    local time = redis.call("TIME")
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

if redis.call("GET", lease) ~= token then return "LOST" end -- [renew.mine]
redis.call("PEXPIREAT", lease, digits(math.floor(server_us() / 1000) + lease_ms))
return "RENEWED"
