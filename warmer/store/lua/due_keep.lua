local doing, wanted = unpack(KEYS)
local working, visible_ms, now_ms = unpack(ARGV)

-- Say that these keys are still worked on: they come back `visible_ms` from now.
--
-- `working`: JSON list of [member, receipt].
-- Atomic, because a key that was given up between the look at its receipt and the new instant
-- would be kept from the worker that has it now.
--
-- returns KEPT, number kept, number taken by others since

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

local until_ms = clock() + visible_ms
local kept, foreign = 0, 0
for _, one in ipairs(cjson.decode(working)) do
    local member, receipt = unpack(one)
    if want_of(member).receipt == receipt and redis.call("ZSCORE", doing, member) then
        redis.call("ZADD", doing, "XX", until_ms, member)
        kept = kept + 1
    else
        foreign = foreign + 1
    end
end
return { "KEPT", kept, foreign }
