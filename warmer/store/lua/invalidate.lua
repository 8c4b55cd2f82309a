local entry, guard = unpack(KEYS)
local scope, version, mode, digest, stale_ms, error_ms, guard_ms, now_ms = unpack(ARGV)

-- Apply one change of one entity (scope) to one key.
--
-- Atomic, because a publish between the note in the guard and the change of the entry would be
-- judged without the note, or purged although it is newer.
--
-- version: "" if the producer has none. mode: "soft" = stale from now on, in place; "hard" =
-- removed. Neither touches failures or retry_at: a storm of events must not defeat back-off.
-- An entry is cut short before the guard grows: while the server's memory is full, a script may
-- write if its first write takes none. Noting a change of an absent entry is then refused.
--
-- returns { "PURGED" | "NOTED" (there was no entry) | "OLDER" (provably), fence }; no load
--     that began before has a higher fence, and one that must see the change has.

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

local now_us = server_us()
local now = math.floor(now_us / 1000)
local known, fields = guard_fields()
local generation = tonumber(known.generation or 0)
local fence = tonumber(known.fence or 0)
if fence < now_us then fence = now_us - 1 end -- [invalidate.fence]
local present = read_entry()
if version == "" then
    version = nil
end
local floor = known["floor." .. scope]
local room = true
if fields >= 140 then room = false end -- [bounded]
local in_entry = order(version_for(scope, versions_of(present and present.vector or "")), version)
local above = order(floor, version)

local function purge()
    -- What no reader of this release trusts cannot be made stale in place.
    if mode == "hard" or not present then
        redis.call("UNLINK", entry)
        return
    end
    local fresh_until, stale_until, error_until =
        present.fresh_until, present.stale_until, present.error_until
    fresh_until = math.min(fresh_until, now) -- [invalidate.stale]
    stale_until = math.min(stale_until, now + stale_ms) -- [invalidate.stale_window]
    error_until = math.min(error_until, now + error_ms) -- [invalidate.error_window]
    local last = math.max(fresh_until, stale_until, error_until)
    if last <= now then
        redis.call("UNLINK", entry)
        return
    end
    redis.call("PEXPIREAT", entry, digits(last))
    redis.call("SETRANGE", entry, 24, struct.pack(">I8I8I8", fresh_until, stale_until, error_until))
end

local spared = false
if in_entry == "newer" then spared = true end -- [invalidate.older_than_entry]
local noted_before = false
if above == "newer" then noted_before = true end -- [invalidate.older_than_floor]
if in_entry == "older" then noted_before = false end -- [invalidate.entry_below]
if spared and above == "equal" then noted_before = true end -- [invalidate.remember]
if mode == "hard" then noted_before = false end -- [invalidate.hard_always]
if noted_before then
    return { "OLDER", fence }
end

local result = spared and "OLDER" or "NOTED"
if not spared and redis.call("EXISTS", entry) == 1 then
    purge()
    result = "PURGED"
end
generation = generation + 1
local noted = {}
local comparable = version and (above ~= "incomparable" or (not floor and room))

local function add(field, value)
    noted[#noted + 1] = field
    noted[#noted + 1] = value
end
add("purged_at", digits(now)) -- [invalidate.purged_at]
add("generation", digits(generation)) -- [invalidate.generation]
if comparable and above ~= "newer" then add("floor." .. scope, version) end -- [invalidate.raise]
if comparable then
    add("raised." .. scope, digits(generation))
end
if not comparable then add("blind", digits(generation)) end -- [invalidate.blind]
if mode == "hard" then add("hard", digits(generation)) end -- [invalidate.hard]
redis.call("HSET", guard, unpack(noted))
keep_guard(now + guard_ms)
return { result, fence }
