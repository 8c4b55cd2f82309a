local entry, lease, guard = unpack(KEYS)
local token, digest, lease_ms, guard_ms, seen_fence, wanted, wanted_fence, now_ms = unpack(ARGV)

-- Ask for the lease of one key.
--
-- Atomic, because between the look at the entry and the taking of the lease another owner may
-- publish, and the load would be a second one; between lease and fence another claim may come,
-- and two owners would share a fence. The guard notes what was known when the load began.
--
-- digest: of the key, 16 hex digits. seen_fence: of the entry that the caller has, 0 = none.
-- wanted, wanted_fence: a version vector that the entry must reach, or else a fence above this.
--
-- returns { "FRESH", entry } | { "HELD", remaining_ms, entry } | { "COOLING", retry_in_ms, entry }
--     | { "CLAIMED", fence, failures, floors, entry }; entry is nil if absent, or seen already.

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

local function vector_of(versions)
    local items = {}
    for scope, version in pairs(versions) do
        items[#items + 1] = scope .. "@" .. version
    end
    return table.concat(items, ";")
end

local now_us = server_us()
local now = math.floor(now_us / 1000)
local known, fields = guard_fields()
local generation = known.generation or "0"
local wanted_versions = versions_of(wanted)
local raised = false

local function raise(scope, version)
    known["floor." .. scope] = version
    redis.call("HSET", guard, "floor." .. scope, version, "raised." .. scope, generation)
    redis.call("HSET", guard, "purged_at", digits(now)) -- [claim.settle]
    raised = true
end

-- A refresh that was asked for carries what it must reach: a lost guard forgets nothing.
for scope, version in pairs(wanted_versions) do
    local floor = known["floor." .. scope]
    local higher = not floor or order(version, floor) == "newer"
    if not floor and fields >= 140 then higher = false end -- [bounded]
    if higher and not floor then
        fields = fields + 2
    end
    if higher then raise(scope, version) end -- [claim.raise]
end
if raised then
    keep_guard(now + guard_ms)
end

local unseen = read_entry()
local seen = unseen and unseen.fence == tonumber(seen_fence)
if seen then unseen = nil end -- [claim.seen]
local stored = unseen and redis.call("GET", entry) or false

local function reached()
    if wanted == "" then
        return unseen.fence > tonumber(wanted_fence)
    end
    local versions = versions_of(unseen.vector)
    for scope, version in pairs(wanted_versions) do
        local held = order(version_for(scope, versions), version)
        if held == "older" then
            return false
        end
        if held == "incomparable" and unseen.fence <= tonumber(wanted_fence) then
            return false
        end
    end
    return true
end

local good = unseen ~= nil
if good and unseen.fresh_until <= now then good = false end -- [claim.fresh]
if good and not reached() then good = false end -- [claim.reached]
if good then
    return { "FRESH", stored }
end

local function claimed(fence)
    local floors = vector_of(floors_of(known))
    return { "CLAIMED", fence, tonumber(known.failures or 0), floors, stored }
end

local owner = lease_owner()
if owner then
    local function heal()
        redis.call("PEXPIREAT", lease, digits(now + lease_ms))
    end
    if redis.call("PEXPIRETIME", lease) < 0 then heal() end -- [claim.heal]
    local ends = redis.call("PEXPIRETIME", lease)
    if owner ~= token then return { "HELD", ends - now, stored } end -- [claim.held]
    if known.owner == token then return claimed(tonumber(known.fence)) end -- [claim.again]
end
local retry_at = tonumber(known.retry_at or 0)
if retry_at > now then return { "COOLING", retry_at - now, stored } end -- [claim.cooling]

local fence = tonumber(known.fence or 0) + 1
if fence < now_us then fence = now_us end -- [claim.fence]
redis.call("SET", lease, token, "PXAT", digits(now + lease_ms))
redis.call(
    "HSET", guard,
    "fence", digits(fence),
    "owner", token,
    "claimed_at", digits(now),
    "claim_generation", generation,
    "claim_floors", vector_of(floors_of(known))
)
keep_guard(now + guard_ms)
return claimed(fence)
