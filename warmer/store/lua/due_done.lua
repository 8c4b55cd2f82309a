local due_now, due_warm, doing, wanted = unpack(KEYS)
local finished, now_ms = unpack(ARGV)

-- Forget keys whose work is finished, unless they were asked for again meanwhile.
--
-- `finished`: JSON list of [member, receipt].
-- Atomic, because forgetting between another's look and its asking would lose the asking.
--
-- returns DONE, number forgotten, number asked for again, number taken by others since

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
local forgotten, again, foreign = 0, 0, 0
for _, one in ipairs(cjson.decode(finished)) do
    local member, receipt = unpack(one)
    local want = want_of(member)
    if want.receipt ~= receipt then
        foreign = foreign + 1
    else
        local busy_until = tonumber(redis.call("ZSCORE", doing, member) or 0)
        redis.call("ZREM", doing, member)
        local due_again = false
        for _, due in ipairs({ due_now, due_warm }) do
            local due_at = redis.call("ZSCORE", due, member)
            due_again = due_again or due_at
            if due_at and tonumber(due_at) <= busy_until then
                -- It may have been put off because of this work.
                redis.call("ZADD", due, "XX", "LT", now, member)
            end
        end
        if due_again then
            want.attempts, want.receipt = "0", ""
            redis.call("HSET", wanted, member, cjson.encode(want))
            again = again + 1
        else
            redis.call("HDEL", wanted, member)
            forgotten = forgotten + 1
        end
    end
end
return { "DONE", forgotten, again, foreign }
