local due, doing, doing_elsewhere, wanted = unpack(KEYS)
local limit, visible_ms, receipt, now_ms = unpack(ARGV)

-- Take ready keys to work on; they come back by themselves after `visible_ms`.
--
-- A key that somebody works on is not taken: it is put off to where that work would be
-- abandoned, and `due_done` brings it forward. `receipt` names this taking; whoever took the
-- key later has another, so that a late report of the first changes nothing.
-- Atomic, because two workers that read the same ready keys would both load them, and a key
-- removed before it is noted as worked on would die with its worker.
--
-- returns TAKEN, ms until the next is due (0 = more are ready, -1 = none), member, wanted, ...

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
local taken = { "TAKEN", -1 }
for _, member in ipairs(redis.call("ZRANGEBYSCORE", due, "-inf", now, "LIMIT", 0, limit)) do
    local busy_until = tonumber(redis.call("ZSCORE", doing, member) or 0)
    busy_until = math.max(
        busy_until, tonumber(redis.call("ZSCORE", doing_elsewhere, member) or 0)
    )
    if busy_until > now then
        redis.call("ZADD", due, "XX", busy_until, member)
    else
        redis.call("ZREM", due, member)
        redis.call("ZADD", doing, now + visible_ms, member)
        local want = want_of(member)
        want.receipt = receipt
        local text = cjson.encode(want)
        redis.call("HSET", wanted, member, text)
        taken[#taken + 1] = member
        taken[#taken + 1] = text
    end
end
local first = redis.call("ZRANGE", due, 0, 0, "WITHSCORES")
if first[2] then taken[2] = math.max(0, tonumber(first[2]) - now) end
return taken
