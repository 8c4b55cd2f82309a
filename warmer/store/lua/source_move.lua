local log, held, state = unpack(KEYS)
local limit, now_ms = unpack(ARGV)

-- Move events that were kept back into the event log, oldest first, unless the source is paused.
--
-- Atomic, because an event in both is applied twice and one in neither is lost; and because an
-- event that was taken between the last move and the end of the pause would overtake the others.
--
-- returns MOVED, number moved, number left
--         PAUSED, 0, number left

local function clock()
    if now_ms and now_ms ~= "" then return tonumber(now_ms) end
    local time = redis.call("TIME")
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

local paused_until = tonumber(redis.call("HGET", state, "paused_until") or "0") or 0
if paused_until > clock() then
    return { "PAUSED", 0, redis.call("XLEN", held) }
end
local moved = redis.call("XRANGE", held, "-", "+", "COUNT", limit)
for _, entry in ipairs(moved) do
    redis.call("XADD", log, "*", unpack(entry[2]))
    redis.call("XDEL", held, entry[1])
end
local left = redis.call("XLEN", held)
if left == 0 then
    redis.call("DEL", held)
    redis.call("HDEL", state, "paused_until", "paused_why")
end
return { "MOVED", #moved, left }
