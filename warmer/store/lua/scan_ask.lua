local asks = unpack(KEYS)
local field, wider, version, event, most = unpack(ARGV)

-- Ask for a scan of the cache server: all keys of entities that begin so are to be invalidated.
--
-- `field`: what is asked for, and of how many parts its version is. One more of a kind raises the
-- version, and counts: a scan that has begun does not cover it. Beyond `most` kinds `wider`
-- takes its place.
-- A record: "<times asked> <version, or -> <event>".
-- Atomic, because a scan that ended between the look at a record and its replacement would take
-- the asking along.
--
-- returns ASKED, times asked | WIDENED, times asked

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

local word = "ASKED"
if redis.call("HEXISTS", asks, field) == 0 and redis.call("HLEN", asks) >= tonumber(most) then
    -- Without a version: what holds for one of them says nothing of the others.
    field, version, word = wider, "-", "WIDENED"
end
local times, known = (redis.call("HGET", asks, field) or "0 - "):match("^(%d+) (%S+) ")
if known and known ~= "-" and order(version, known) == "older" then
    version = known
end
times = (tonumber(times or 0) + 1) % 1000000000
redis.call("HSET", asks, field, string.format("%d %s %s", times, version, event))
return { word, times }
