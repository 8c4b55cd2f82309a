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

-- Nil where another type is stored, which no script here has done.
local function typed(reply)
    if type(reply) ~= "table" or not reply.err then
        return reply
    end
    if not reply.err:find("WRONGTYPE", 1, true) then
        error(reply)
    end
    return nil
end

-- What a client of another kind keeps there is a lease too, and nobody's here.
local function lease_owner()
    local owner = typed(redis.pcall("GET", lease))
    if owner == nil then
        return ""
    end
    return owner
end

if lease_owner() ~= token then return "LOST" end -- [renew.mine]
redis.call("PEXPIREAT", lease, digits(math.floor(server_us() / 1000) + lease_ms))
return "RENEWED"
