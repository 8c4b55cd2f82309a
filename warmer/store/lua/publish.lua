local entry, lease, guard, staged = unpack(KEYS)
local token, fence, vector, flags, schema, digest, load_ms, fresh_ms, stale_ms, error_ms, settle_ms,
    lag_retry_ms, guard_ms, channel, carried, body, now_ms = unpack(ARGV)

-- Store a loaded body if this claim may, and end the lease.
--
-- Atomic, because between any of the checks (owner, fence, floors, generation, stored entry) and
-- the write an invalidation, a claim or another publish may come, and an old value would stay.
-- Header and body change in one step: no reader sees a new window on an old body.
--
-- carried: "inline" = body is the body. "staged" = the key staged holds 64 bytes of room, the
-- vector and the body, so that a large body is not copied through the script's arguments.
-- The first write takes memory in every branch: a full server refuses all of it, or nothing.
--
-- returns "PUBLISHED" | "KEPT_STALE" | "ALREADY" | "ALREADY_KEPT" | "OUTDATED" | "FENCED"
--     | "UNSTAGED" (the staged body is gone: send it again; nothing was changed)

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

local function readable(name, value)
    local kind = name:match("^[^.]*")
    if kind == "floor" then
        local parts = value:match("^%x%x%x%x%x%x%x%x=(%x+)$")
        return parts and #parts % 16 == 0 and name:find("^floor%.[!-:<-~]+$")
    end
    local number = kind == "raised" or kind == "fence" or kind == "generation" or kind == "blind"
        or kind == "hard" or kind == "purged_at" or kind == "claimed_at"
        or kind == "claim_generation" or kind == "failures" or kind == "retry_at"
    return not number or (#value <= 16 and value:find("^%d+$"))
end

-- A guard that no script here can read is removed: the loss of it costs a load, and as it is
-- every claim would fail.
local function guard_fields()
    local fields, flat = {}, typed(redis.pcall("HGETALL", guard))
    for at = 1, flat and #flat or 0, 2 do
        fields[flat[at]] = flat[at + 1]
        if not readable(flat[at], flat[at + 1]) then
            flat = nil
            break
        end
    end
    if not flat then
        redis.call("UNLINK", guard)
        return {}, 0
    end
    return fields, #flat / 2
end

-- What a client of another kind keeps there is a lease too, and nobody's here.
local function lease_owner()
    local owner = typed(redis.pcall("GET", lease))
    if owner == nil then
        return ""
    end
    return owner
end

local function keep_guard(until_ms)
    if redis.call("PEXPIRETIME", guard) < until_ms then
        redis.call("PEXPIREAT", guard, digits(until_ms))
    end
end

-- Nil for what no reader would take for this key's entry: another type, format or key.
local function read_entry()
    local head = redis.pcall("GETRANGE", entry, 0, 63)
    if type(head) == "table" and not head.err:find("WRONGTYPE", 1, true) then
        error(head)
    end
    if type(head) ~= "string" or #head < 64 or head:sub(1, 3) ~= "WE\1" then
        return nil
    end
    local bits, _, high, low, _, fresh_until, stale_until, error_until, issued, _, room, rest =
        struct.unpack(">BI4I4I4I8I8I8I8I8I4I2I2", head, 4)
    local body_length = redis.call("STRLEN", entry) - 64 - room
    if bits > 15 or string.format("%08x%08x", high, low) ~= digest then
        return nil
    end
    if body_length < 0 or body_length % 65536 ~= rest then
        return nil
    end
    return {
        kept_stale = bit.band(bits, 2) ~= 0,
        fresh_until = fresh_until,
        stale_until = stale_until,
        error_until = error_until,
        fence = issued,
        vector = room == 0 and "" or redis.call("GETRANGE", entry, 64, 63 + room),
    }
end

local function versions_of(text)
    local versions = {}
    for item in text:gmatch("[^;]+") do
        local name, encoded = item:match("^(.+)@(%x%x%x%x%x%x%x%x=%x+)$")
        if not name then
            return {}
        end
        versions[name] = encoded
    end
    return versions
end

-- A scope's own version, or the position of its source.
local function version_for(name, versions)
    return versions[name] or versions[name:match("^[^/]*")]
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

local function floors_of(fields)
    local floors = {}
    for name, version in pairs(fields) do
        if name:sub(1, 6) == "floor." then
            floors[name:sub(7)] = version
        end
    end
    return floors
end

local function without_body(reply)
    if carried == "staged" then
        redis.call("UNLINK", staged)
    end
    return reply
end

local now = math.floor(server_us() / 1000)
local known = guard_fields()
local present = read_entry()
local done = present and (present.kept_stale and "ALREADY_KEPT" or "ALREADY")
if done and known.publisher == token then return without_body(done) end -- [publish.already]

local owner = lease_owner()
if known.fence ~= fence then return without_body("FENCED") end -- [publish.fence]
if known.owner ~= token then return without_body("FENCED") end -- [publish.owner]
if owner and owner ~= token then return without_body("FENCED") end -- [publish.lease]

-- Current: contains every change known. Proven: its versions say so. Spans: is not current only
-- because changes came while it ran. Lagging: its source is behind the events, or
-- behind what is stored.
local versions = versions_of(vector)
local claim_generation = tonumber(known.claim_generation or 0)
local current, proven, spans, lagging = true, true, true, false
for scope, floor in pairs(floors_of(known)) do
    local stands = order(version_for(scope, versions), floor)
    local late = tonumber(known["raised." .. scope] or 0) > claim_generation
    if stands == "older" then lagging = true end
    if stands == "older" then current = false end -- [publish.floor]
    if stands == "incomparable" then proven = false end
    if stands == "incomparable" and late then current = false end -- [publish.raised]
end
if known.blind then
    proven = false
end
if tonumber(known.blind or 0) > claim_generation then current = false end -- [publish.blind]
for scope, version in pairs(versions_of(present and present.vector or "")) do
    local regresses = order(version_for(scope, versions), version) == "older"
    if regresses then current = false end -- [publish.regress]
    if regresses then spans = false end -- [publish.kept_regress]
    if regresses then lagging = true end
end
for scope, floor in pairs(versions_of(known.claim_floors or "")) do
    local below = order(version_for(scope, versions), floor) == "older"
    if below then spans = false end -- [publish.kept_floor]
end
if tonumber(known.hard or 0) > claim_generation then spans = false end -- [publish.kept_hard]

local claimed_at = tonumber(known.claimed_at or 0)
local settled_at = tonumber(known.purged_at or 0) + settle_ms
local unsettled = known.purged_at and not proven and claimed_at < settled_at
local fresh_until = now + fresh_ms
local reply = "OUTDATED"
if current then
    reply = "PUBLISHED"
    if unsettled then fresh_until = math.min(fresh_until, settled_at) end -- [publish.settle]
elseif spans and tonumber(stale_ms) > 0 then
    reply = "KEPT_STALE" -- [publish.kept]
    fresh_until = claimed_at -- [publish.kept_window]
end
local last = fresh_until + math.max(0, tonumber(stale_ms), tonumber(error_ms))
if reply == "KEPT_STALE" and last <= now then
    reply = "OUTDATED"
end

local function header(body_length)
    return struct.pack(
        ">c2BBI4I4I4I8I8I8I8I8I4I2I2", "WE", 1,
        reply == "KEPT_STALE" and bit.bor(flags, 2) or flags, schema,
        tonumber(digest:sub(1, 8), 16), tonumber(digest:sub(9), 16),
        now, fresh_until, fresh_until + stale_ms, fresh_until + error_ms,
        fence, load_ms, #vector, body_length % 65536
    )
end

local function store(until_ms)
    if carried == "inline" then
        redis.call("SET", entry, header(#body) .. vector .. body, "PXAT", digits(until_ms))
        return true
    end
    local length = redis.call("STRLEN", staged)
    if length == 0 then
        return false
    end
    redis.call("SETRANGE", staged, 0, header(length - 64 - #vector))
    redis.call("PEXPIREAT", staged, digits(until_ms))
    redis.call("RENAME", staged, entry)
    return true
end

if reply ~= "OUTDATED" and not store(math.max(last, now + 1)) then
    return "UNSTAGED"
end
redis.call("HSET", guard, "owner", "") -- [publish.once]
if reply ~= "OUTDATED" then
    redis.call("HSET", guard, "publisher", token)
    redis.call("HDEL", guard, "failures", "retry_at") -- [publish.forgives]
elseif lagging then
    redis.call("HSET", guard, "retry_at", digits(now + lag_retry_ms)) -- [publish.lag]
end
keep_guard(now + guard_ms)
redis.call("DEL", lease) -- [publish.frees]
-- A user without rights to channels stores all the same: its waiters look again by themselves.
redis.pcall("PUBLISH", channel, "published")
return reply == "OUTDATED" and without_body(reply) or reply
