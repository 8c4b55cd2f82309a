local due_now, due_warm, wanted, wake, queue, job = unpack(KEYS)
local lane, due_in_ms, asked, job_id, payload, job_ms, wake_ms, now_ms = unpack(ARGV)

-- Ask for keys to be refreshed, and queue a drain job unless one is queued.
--
-- `asked`: JSON list of [member, versions, fence, event]. A key that is due keeps its earlier
-- instant; what it must reach is raised to the newest of both.
-- Atomic, because a key that became due between a drain's last look and the wake flag would
-- wait for the sweep, and a key without its versions could be refreshed from a lagging replica.
-- A worker that is busy with the key does not keep it from being due again.
--
-- returns ADDED, number of keys that were not due before, WOKEN | AWAKE

local function clock()
    if now_ms and now_ms ~= "" then return tonumber(now_ms) end
    local time = redis.call("TIME")
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Decimal texts without leading zeros: numbers above 2^53 lose digits here.
local function larger(a, b)
    if #a ~= #b then return #a > #b and a or b end
    return a > b and a or b
end

-- By epoch; within one epoch by digits, if both have as many. 32 bits at a time: numbers lose
-- digits above 2^53, and < on strings follows the server's locale ("aa" comes last in Danish).
local function order(one, other)
    if not one or not other then
        return "incomparable"
    end
    local function difference(at)
        return tonumber(one:sub(at, at + 7), 16) - tonumber(other:sub(at, at + 7), 16)
    end
    local found = difference(1)
    if found == 0 and #one ~= #other then
        return "incomparable"
    end
    for at = 10, #one, 8 do
        if found ~= 0 then
            break
        end
        found = difference(at)
    end
    if found == 0 then
        return "equal"
    end
    return found > 0 and "newer" or "older"
end

local function merged(known, versions)
    if known == versions or known == "" then return versions end
    local newest, scopes = {}, {}
    for _, vector in ipairs({ known, versions }) do
        for item in vector:gmatch("[^;]+") do
            local scope, version = item:match("^(.+)@(%x%x%x%x%x%x%x%x=%x+)$")
            if scope and not newest[scope] then scopes[#scopes + 1] = scope end
            if scope and order(version, newest[scope]) ~= "older" then
                newest[scope] = version
            end
        end
    end
    table.sort(scopes)
    local items = {}
    for at, scope in ipairs(scopes) do items[at] = scope .. "@" .. newest[scope] end
    local vector = table.concat(items, ";")
    -- The bound of a vector. The fence still makes the refresh load anew.
    return #vector <= 4096 and vector or versions
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
local due = lane == "now" and due_now or due_warm
local added = 0
for _, one in ipairs(cjson.decode(asked)) do
    local member, versions, fence, event = unpack(one)
    local want = want_of(member)
    want.versions = merged(want.versions, versions)
    want.fence = larger(want.fence, fence)
    want.event = event
    redis.call("HSET", wanted, member, cjson.encode(want))
    if lane == "now" then redis.call("ZREM", due_warm, member) end
    if lane == "now" or not redis.call("ZSCORE", due_now, member) then
        added = added + redis.call("ZADD", due, "LT", now + due_in_ms, member)
    end
end

if tonumber(due_in_ms) > 0 or not redis.call("SET", wake, job_id, "NX", "PX", wake_ms) then
    return { "ADDED", added, "AWAKE" }
end
redis.call("SET", job, payload, "PX", job_ms)
redis.call("ZADD", queue, now, job_id)
return { "ADDED", added, "WOKEN" }
