local due, doing, wanted, wake, queue, job = unpack(KEYS)
local limit, apart_ms, job_id, payload, job_ms, wake_ms, now_ms = unpack(ARGV)

-- Return abandoned keys to the lane, and queue a drain job if keys are ready and none is queued.
--
-- Being abandoned counts as a failed attempt: a key whose load ends its worker must not end
-- every worker in turn. What was abandoned together comes back at once the first time, and
-- then one by one, ever further apart: those beside such a key are not given up with it.
-- The flag holds the queued job's id: a flag whose job is gone (evicted, lost in a failover,
-- deleted by arq) wakes nobody, and is replaced.
-- Atomic, because a job may begin, and clear the flag, between the look and the replacement.
--
-- returns SWEPT, number abandoned, WOKEN | AWAKE

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
local abandoned = redis.call("ZRANGEBYSCORE", doing, "-inf", now, "LIMIT", 0, limit)
for at, member in ipairs(abandoned) do
    local want = want_of(member)
    local before = tonumber(want.attempts)
    want.attempts = string.format("%d", before + 1)
    redis.call("HSET", wanted, member, cjson.encode(want))
    redis.call("ZREM", doing, member)
    redis.call("ZADD", due, "LT", now + (at - 1) * before * apart_ms, member)
end

if #redis.call("ZRANGEBYSCORE", due, "-inf", now, "LIMIT", 0, 1) == 0 then
    return { "SWEPT", #abandoned, "AWAKE" }
end
local queued = redis.call("GET", wake)
if queued and redis.call("ZSCORE", queue, queued) then
    return { "SWEPT", #abandoned, "AWAKE" }
end
redis.call("SET", wake, job_id, "PX", wake_ms)
redis.call("SET", job, payload, "PX", job_ms)
redis.call("ZADD", queue, now, job_id)
return { "SWEPT", #abandoned, "WOKEN" }
