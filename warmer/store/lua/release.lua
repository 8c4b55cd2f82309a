local lease, guard = unpack(KEYS)
local token, retry_ms, channel, now_ms = unpack(ARGV)

-- End the lease without a body; retry_ms given = the load failed, and the fleet backs off.
--
-- Atomic, because between the comparison and the deletion the lease may end and another owner
-- may take it, and because the back-off must be there before anyone can claim again.
--
-- Guards are not made here, so that a release works while the server's memory is full: after a
-- first write that frees (DEL), a script may write what takes memory.
--
-- returns "RELEASED" | "EXPIRED" (there was no lease) | "FOREIGN" (it is another's; untouched)

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

local owner = lease_owner()
local foreign = owner and owner ~= token
if not foreign then redis.call("DEL", lease) end -- [release.mine]

local last_claim_is_mine = typed(redis.pcall("HGET", guard, "owner")) == token
if last_claim_is_mine then
    redis.call("HSET", guard, "owner", "") -- [release.ends]
end
if last_claim_is_mine and retry_ms ~= "" then
    redis.call("HINCRBY", guard, "failures", 1)
    redis.call("HSET", guard, "retry_at", digits(math.floor(server_us() / 1000) + retry_ms))
end
if last_claim_is_mine or owner == token then
    -- A user without rights to channels stores all the same: its waiters look again by themselves.
    redis.pcall("PUBLISH", channel, "released")
end
if foreign then
    return "FOREIGN"
end
return owner and "RELEASED" or "EXPIRED"
