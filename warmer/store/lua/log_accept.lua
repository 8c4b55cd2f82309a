local log, held, state, sources, seen, recent, regressed, lineages = unpack(KEYS)
local source, group, records, open, limits, now_ms = unpack(ARGV)

-- Take events of one source into the event log, each in its place.
--
-- `records`: JSON list of [event, lineage, entity, by_entity, digits, occurred_at, identity], all
-- texts; "" is none. `digits` are compared with the source's newest, or where by_entity is not ""
-- with the newest of that entity. `limits`: JSON object of the source's rules and of bounds.
-- `open` not "": open an epoch first, for that reason.
-- Atomic, because an event between an opening and its epoch would look older than it is; because
-- a repetition that is known but not appended would be lost; and because two writers would both
-- take a new lineage for the first.
-- While the source is paused, and until all that was kept back has been moved into the log,
-- events go to `held`: an older epoch's must not come after a newer one's.
--
-- returns APPENDED, one 0 | 1 a record (1 = new), regressed, epoch opened ("" = none), told,
--             id of the last in the log ("" = none, or kept back)
--         FULL, how many events wait

local bounds = cjson.decode(limits)

local function clock()
    if now_ms and now_ms ~= "" then return tonumber(now_ms) end
    local time = redis.call("TIME")
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function digits_of(number)
    return string.format("%.0f", number)
end

-- How many events nobody has applied; what the server cannot tell counts as none.
local function waiting()
    if redis.call("EXISTS", log) == 0 then return 0 end
    for _, one in ipairs(redis.call("XINFO", "GROUPS", log)) do
        local about = {}
        for at = 1, #one, 2 do about[one[at]] = one[at + 1] end
        if about.name == group then
            return tonumber(about.pending) + (tonumber(about.lag or 0) or 0)
        end
    end
    return redis.call("XLEN", log)
end

local now = clock()
local known = {}
do
    local flat = redis.call("HGETALL", state)
    for at = 1, #flat, 2 do known[flat[at]] = flat[at + 1] end
end
local epoch = tonumber(known.epoch or "0")
local kept_back = redis.call("XLEN", held)
local paused = kept_back > 0 or (tonumber(known.paused_until or "0") or 0) > now
local count = paused and kept_back or waiting()
if count >= (paused and bounds.max_held or bounds.max_backlog) then
    return { "FULL", count }
end
local last_id = ""

local function append(event, unversioned)
    local fields = { "event", event }
    local function add(name, value)
        fields[#fields + 1] = name
        fields[#fields + 1] = value
    end
    if epoch > 0 then add("epoch", digits_of(epoch)) end
    if unversioned then add("unversioned", unversioned) end
    local id = redis.call("XADD", paused and held or log, "*", unpack(fields))
    if not paused then last_id = id end
end

-- How many numbers the event's version has; nil without one. Within texts quotes are escaped.
local function parts_of(event)
    local list = event:match('"parts":%[([^%]]+)%]')
    return list and select(2, list:gsub(",", "")) + 1
end

local opened = ""

-- Every key of the source is purged once, and its floor raised into the new epoch: one that no
-- event gave itself. Unless events tell which order they are of, those that happened before the
-- newest known may be of the one that ended.
local function open_epoch(why, events_tell)
    local parts = {}
    for at = 1, tonumber(known.parts or "1") do parts[at] = "0" end
    epoch = math.max(epoch, tonumber(known.own_epoch or "0")) + 1
    opened = digits_of(epoch)
    append(cjson.encode({
        id = "epoch-" .. opened,
        source = source,
        prefixes = { "" },
        version = { epoch = epoch, parts = parts },
    }))
    if not events_tell then
        known.ended_at = digits_of(math.min(tonumber(known.latest_at or "0"), now))
        redis.call("HSET", state, "ended_at", known.ended_at)
    end
    known.opened_at = digits_of(now)
    known.newest, known.newest_at, known.told = nil, nil, nil
    redis.call("DEL", recent, regressed)
    redis.call("HDEL", state, "newest", "newest_at", "told")
    redis.call("HSET", state, "epoch", opened, "opened_at", digits_of(now), "opened_why", why)
end

-- 32 bits at a time: numbers lose digits above 2^53, and < on strings follows the server's locale.
local function difference(one, other)
    for at = 1, #one, 8 do
        local found = tonumber(one:sub(at, at + 7), 16) - tonumber(other:sub(at, at + 7), 16)
        if found ~= 0 then return found end
    end
    return 0
end

-- Returns why the version says nothing about order, nil if it does.
local function of_lineage(lineage)
    if lineage == "" or lineage == known.lineage then return nil end
    if known.lineage then
        if redis.call("SISMEMBER", lineages, lineage) == 1 then return "old_lineage" end
        if redis.call("SCARD", lineages) >= bounds.max_lineages then return "many_lineages" end
    end
    redis.call("SADD", lineages, lineage)
    if known.lineage then open_epoch("lineage", true) end
    known.lineage = lineage
    redis.call("HSET", state, "lineage", lineage)
    return nil
end

local function newest_of(entity)
    if entity == "" then return known.newest, tonumber(known.newest_at or "") end
    local kept = redis.call("HGET", recent, entity)
    if not kept then return nil, nil end
    local digits, at = kept:match("^(%x+)@(%d*)$")
    return digits, tonumber(at or "")
end

local function remember(entity, digits, at)
    local instant = at and digits_of(at) or ""
    if entity == "" then
        known.newest, known.newest_at = digits, instant
        return
    end
    local added = redis.call("HSET", recent, entity, digits .. "@" .. instant) == 1
    if added and redis.call("HLEN", recent) > bounds.max_recent then
        redis.call("HDEL", recent, redis.call("HRANDFIELD", recent))
    end
end

local regressions, told = 0, 0

-- Returns "regressed" if the version is lower than one whose commit is clearly older, and
-- "old_order" for what may have happened before the order that now counts began.
local function of_order(ordered_by, entity, digits, at)
    if at and at <= tonumber(known.ended_at or "-1") then return "old_order" end
    local newest, newest_at = newest_of(ordered_by)
    if not newest or #newest ~= #digits then
        remember(ordered_by, digits, at)
        return nil
    end
    local found = difference(digits, newest)
    if found >= 0 then
        local later = at and newest_at and math.max(at, newest_at) or at or newest_at
        remember(ordered_by, digits, later)
        return nil
    end
    if not (at and newest_at and at > newest_at + bounds.regression_ms) then return nil end
    regressions = regressions + 1
    if redis.call("SCARD", regressed) < bounds.regression_entities then
        redis.call("SADD", regressed, entity)
    end
    if known.told or redis.call("SCARD", regressed) < bounds.regression_entities then
        return "regressed"
    end
    -- A producer whose clock is wrong does so again at once, and each opening purges every key.
    if bounds.opens_epoch and now < tonumber(known.opened_at or "0") + bounds.regression_ms then
        return "regressed"
    end
    told, known.told = 1, "1"
    redis.call("HSET", state, "told", "1")
    if bounds.opens_epoch then
        open_epoch("regression")
        remember(ordered_by, digits, at)
        return nil
    end
    return "regressed"
end

-- An entity's digits begin with the epoch that the event gave itself. Readers take the larger of
-- it and the source's: two of its own that are not above the source's would be one.
-- Returns why the version says nothing about order, nil if it does.
local function of_own_epoch(digits)
    if #digits % 16 ~= 8 then return nil end
    local own, newest = tonumber(digits:sub(1, 8), 16), tonumber(known.own_epoch or "0")
    if own < newest and own < epoch then return "old_epoch" end
    if own > newest and own <= epoch then open_epoch("producer", true) end
    if own > newest then known.own_epoch = digits_of(own) end
    return nil
end

local function is_repetition(identity)
    if identity == "" or bounds.dedupe_ms == 0 then return false end
    return redis.call("ZADD", seen, "NX", now, identity) == 0
end

redis.call("SADD", sources, source)
redis.call("ZREMRANGEBYSCORE", seen, "-inf", now - bounds.dedupe_ms)
if open ~= "" then
    open_epoch(open)
    -- By hand: a source that went back to an old lineage for good is in order again.
    known.lineage = nil
    redis.call("DEL", lineages)
    redis.call("HDEL", state, "lineage")
end
local new, accepted, unordered = {}, 0, 0
for at, record in ipairs(cjson.decode(records)) do
    local event, lineage, entity, by_entity, digits, occurred_at, identity = unpack(record)
    if is_repetition(identity) then
        new[at] = "0"
    else
        new[at] = "1"
        accepted = accepted + 1
        known.parts = parts_of(event) or known.parts
        local happened_at = tonumber(occurred_at)
        local why = of_lineage(lineage) or of_own_epoch(digits)
        if not why and digits ~= "" then
            why = of_order(by_entity ~= "" and entity or "", entity, digits, happened_at)
        end
        if not why and happened_at and happened_at > tonumber(known.latest_at or "0") then
            known.latest_at = digits_of(happened_at)
        end
        if why then unordered = unordered + 1 end
        append(event, why)
    end
end
local excess = redis.call("ZCARD", seen) - bounds.max_seen
if excess > 0 then redis.call("ZREMRANGEBYRANK", seen, 0, excess - 1) end
for _, name in ipairs({ "newest", "newest_at", "latest_at", "parts", "own_epoch" }) do
    if known[name] then redis.call("HSET", state, name, known[name]) end
end
redis.call("HSET", state, "heard_at", digits_of(now))
for name, by in pairs({
    accepted = accepted,
    duplicate = #new - accepted,
    unversioned = unordered,
    regressed = regressions,
}) do
    if by > 0 then redis.call("HINCRBY", state, name, by) end
end
return { "APPENDED", table.concat(new), regressions, opened, told, last_id }
