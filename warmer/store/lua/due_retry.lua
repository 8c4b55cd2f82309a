local due_now, due_warm, doing, wanted = unpack(KEYS)
local lane, unfinished, now_ms = unpack(ARGV)

-- Put keys back that could not be finished: due again after a delay of their own.
--
-- `unfinished`: JSON list of [member, receipt, delay_ms, failures]; failures (0 or 1) adds to
-- the key's failed attempts.
-- Atomic, because a key that is neither due nor worked on is lost, and one that is both is
-- loaded twice.
--
-- returns RETRIED, number put back, number taken by others since

local function clock()
    if now_ms and now_ms ~= "" then return tonumber(now_ms) end
    local time = redis.call("TIME")
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- What a due key must reach. What cannot be read counts as nothing asked for: one such record
-- must not hold up its lane.
local function want_of(member)
    local read, found = pcall(cjson.decode, redis.call("HGET", wanted, member) or "")
    local want = { versions = "", fence = "0", attempts = "0", receipt = "", event = "" }
    for name in pairs(want) do
        local value = read and type(found) == "table" and found[name]
        if type(value) == "string" then want[name] = value end
    end
    if not want.fence:match("^%d+$") or #want.fence > 20 then want.fence = "0" end
    if not want.attempts:match("^%d+$") or #want.attempts > 6 then want.attempts = "0" end
    return want
end

local now = clock()
local put_back, foreign = 0, 0
for _, one in ipairs(cjson.decode(unfinished)) do
    local member, receipt, delay_ms, failures = unpack(one)
    local want = want_of(member)
    if want.receipt ~= receipt then
        foreign = foreign + 1
    else
        want.attempts = string.format("%d", want.attempts + failures)
        want.receipt = ""
        redis.call("HSET", wanted, member, cjson.encode(want))
        redis.call("ZREM", doing, member)
        -- Asked for again in the urgent lane meanwhile: that is where it stays.
        local urgent = lane == "now" or redis.call("ZSCORE", due_now, member)
        redis.call("ZREM", due_warm, member)
        redis.call("ZADD", urgent and due_now or due_warm, now + delay_ms, member)
        put_back = put_back + 1
    end
end
return { "RETRIED", put_back, foreign }
