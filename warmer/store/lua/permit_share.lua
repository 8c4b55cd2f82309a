local permits = unpack(KEYS)
local process, number, pools, seen, starts, limits, ttl_ms, now_ms = unpack(ARGV)

-- Say what a process wants and uses of an origin's limit, and be told what it may use.
--
-- pools: JSON { name = { limit, reserve, wants x 4, used x 4, granted x 4 } }; "" is the whole
-- origin's, whose limit is decided here. Four purposes each, the urgent first; all but the first
-- may use limit - reserve. `granted`: what the process goes by until it sees the reply.
-- seen: JSON { ok, failed, pushed_back, load_ms, retry_after_ms, era }.
-- limits: JSON { limit, floor, reserve_ratio, adaptive, rate }. starts: loads it will begin.
--
-- Atomic, because what one process is granted must not be granted to another. A share that is
-- taken back counts as used until its process has said that it goes by the smaller one: the
-- reply that tells it may be late or lost. Nobody's share grows while the table may lack others'
-- (the server is another, or was emptied, less than a ttl ago).
--
-- returns { "GRANTED" | "LATER_KNOWN", starts (-1 any), limit, phase, retry_in_ms, era,
--     processes, name, request, now, warm, ahead, ... }

local LEAST, FADES, BREAKER_MS = 10, 0.75, 1000
local OPEN_BASE_MS, OPEN_CAP_MS, RETRY_AFTER_CAP_MS = 1000, 10000, 120000
local PROBES, PROVEN = 2, 3
local BEARING_MS, MEAN_OF, SLOW, SLOW_MS, DOWN, MOST_DOWN, GROWTH, USUAL_GROWTH =
    500, 5, 2.0, 25, 0.7, 0.5, 0.1, 1.02
local TURN_MS, BURST_S, MAX_PROCESSES = 500, 0.2, 500

local function clock()
    if now_ms and now_ms ~= "" then return tonumber(now_ms) end
    local time = redis.call("TIME")
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function decoded(text)
    local read, found = pcall(cjson.decode, text or "")
    return read and type(found) == "table" and found or nil
end

-- A process's record, if it is one: what another hand wrote must not end everybody's reports.
local function record_of(text)
    local found = decoded(text)
    if not found or type(found.pools) ~= "table" then return nil end
    for _, name in ipairs({ "ends", "number", "starts" }) do
        if not tonumber(found[name]) then return nil end
    end
    for _, pool in pairs(found.pools) do
        if type(pool) ~= "table" then return nil end
        for at = 1, 6 do
            if type(pool[at]) ~= "number" then return nil end
        end
    end
    found.ends, found.starts = tonumber(found.ends), tonumber(found.starts)
    return found
end

local function clamped(value, least, most)
    return math.min(most, math.max(least, value))
end

-- What is known of the origin. What an older release or nobody wrote counts as not known.
local function known(text)
    local found = decoded(text) or {}
    local numbers = {
        born = 0, limit = 0, usual_ms = 0, since_ms = 0, window_ok = 0, window_failed = 0,
        pushed_back = 0, load_ms = 0, until_ms = 0, opened = 0, era = 0, ok = 0, failed = 0,
        window_at_ms = 0, in_a_row = 0, tokens = 0, tokens_at = 0,
    }
    for name, default in pairs(numbers) do
        if type(found[name]) ~= "number" then found[name] = default end
    end
    if type(found.run) ~= "string" then found.run = "" end
    if found.phase ~= "open" and found.phase ~= "probing" then found.phase = "closed" end
    return found
end

local now, ttl = clock(), tonumber(ttl_ms)
local limits_of = cjson.decode(limits)
local ceiling, floor, reserve_ratio = limits_of[1], limits_of[2], limits_of[3]
local adaptive, rate = limits_of[4] == 1, limits_of[5]
local ok, failed, pushed_back, load_ms, retry_after_ms, era = unpack(cjson.decode(seen))

local origin, own = nil, "p:" .. process
local others, count = {}, 0
local flat = redis.call("HGETALL", permits)
for at = 1, #flat, 2 do
    local name, record = flat[at], nil
    if name == "origin" then
        origin = known(flat[at + 1])
    else
        record = record_of(flat[at + 1])
        if not record or record.ends <= now then
            redis.call("HDEL", permits, name)
            record = nil
        elseif record.ends > now + 2 * ttl then
            -- The server's clock went back. What they hold they hold for one term more.
            record.ends = now + ttl
            redis.call("HSET", permits, name, cjson.encode(record))
        end
    end
    if record then
        others[name] = record
        count = count + 1
    end
end
local before = others[own]
others[own] = nil

-- --- what is known of the origin -----------------------------------------------------------

origin = origin or known(nil)
local info = redis.pcall("INFO", "server")
local run = type(info) == "string" and info:match("run_id:(%x+)") or "unknown"
if origin.run ~= run then
    origin.run, origin.born = run, now
end
if origin.limit <= 0 then origin.limit = ceiling end
-- Where the server's clock went back, nothing waits for it to come here again.
for _, name in ipairs({ "born", "since_ms", "window_at_ms", "tokens_at" }) do
    origin[name] = math.min(origin[name], now)
end
origin.until_ms = math.min(origin.until_ms, now + RETRY_AFTER_CAP_MS)

local function changed(phase, until_ms)
    origin.phase, origin.until_ms = phase, until_ms
    origin.era, origin.ok, origin.failed, origin.in_a_row = origin.era + 1, 0, 0, 0
    if phase == "open" then
        -- Calls ramp when it works again; they do not jump.
        origin.limit, origin.since_ms = floor, now
        origin.window_ok, origin.window_failed, origin.pushed_back, origin.load_ms = 0, 0, 0, 0
    end
end

local function opened()
    changed("open", now + math.min(OPEN_CAP_MS, OPEN_BASE_MS * 2 ^ math.min(origin.opened, 20)))
    origin.opened = origin.opened + 1
end

local function look()
    if origin.phase == "open" and now >= origin.until_ms then
        changed("probing", 0)
        return
    end
    local elapsed = now - origin.window_at_ms
    if origin.phase == "closed" and elapsed >= BREAKER_MS then
        local fades = FADES ^ math.min(math.floor(elapsed / BREAKER_MS), 100)
        origin.ok, origin.failed = origin.ok * fades, origin.failed * fades
        origin.window_at_ms = now
    end
end

local function bear()
    origin.window_ok = origin.window_ok + ok
    origin.window_failed = origin.window_failed + failed
    origin.pushed_back = origin.pushed_back + pushed_back
    origin.load_ms = origin.load_ms + load_ms
    local all = origin.window_ok + origin.window_failed
    if now - origin.since_ms >= BEARING_MS and all > 0 then
        local limit, usual = origin.limit, origin.usual_ms
        local mean = origin.load_ms / math.max(1, origin.window_ok)
        local slow = usual > 0 and origin.window_ok >= MEAN_OF
            and mean > math.max(SLOW * usual, usual + SLOW_MS)
        if adaptive and origin.pushed_back * 10 > all then
            limit = limit * DOWN
        elseif adaptive and slow then
            limit = limit * math.max(MOST_DOWN, SLOW * usual / mean)
        elseif origin.window_ok > 0 then
            limit = limit + math.max(1, limit * GROWTH)
        end
        if origin.window_ok >= MEAN_OF then
            local grown = math.max(1, usual * USUAL_GROWTH)
            origin.usual_ms = usual > 0 and math.min(mean, grown) or mean
        end
        origin.limit, origin.since_ms = limit, now
        origin.window_ok, origin.window_failed, origin.pushed_back, origin.load_ms = 0, 0, 0, 0
    end
    origin.limit = clamped(origin.limit, floor, ceiling)
end

local function tell()
    if era ~= origin.era then return end
    bear()
    origin.ok, origin.failed = origin.ok + ok, origin.failed + failed
    origin.in_a_row = ok > 0 and 0 or origin.in_a_row + failed
    local total = origin.ok + origin.failed
    local half = total >= LEAST and origin.failed >= total / 2
    if retry_after_ms > 0 then
        changed("open", now + math.min(retry_after_ms, RETRY_AFTER_CAP_MS))
    elseif origin.phase == "closed" and (half or origin.in_a_row >= LEAST) then
        opened()
    elseif origin.phase == "probing" and origin.failed >= 1 then
        opened()
    elseif origin.phase == "probing" and origin.ok >= PROVEN then
        changed("closed", 0)
        origin.opened = 0
    end
end

look()
local late = before and tonumber(before.number) >= tonumber(number)
if not late then tell() end

local function origin_pool()
    if origin.phase == "open" then return 0, 0 end
    local limit = math.floor(clamped(origin.limit, floor, ceiling))
    if origin.phase == "probing" then return math.min(limit, PROBES), 0 end
    return limit, math.max(0, math.min(math.ceil(limit * reserve_ratio), limit - 1))
end

-- --- shares --------------------------------------------------------------------------------

local function level(limit, wants, turn)
    local shares, waiting, left = {}, {}, limit
    for at = 1, #wants do
        shares[at], waiting[at] = 0, at
    end
    table.sort(waiting, function(a, b)
        if wants[a] ~= wants[b] then return wants[a] < wants[b] end
        return a < b
    end)
    local first = 1
    local function satisfied()
        local fair = math.floor(left / (#waiting - first + 1))
        return first <= #waiting and wants[waiting[first]] <= fair
    end
    while satisfied() do
        shares[waiting[first]] = wants[waiting[first]]
        left = left - wants[waiting[first]]
        first = first + 1
    end
    local rest = {}
    for at = first, #waiting do rest[#rest + 1] = waiting[at] end
    table.sort(rest)
    for place, at in ipairs(rest) do
        local nth = (place - 1 + turn) % #rest
        shares[at] = math.floor(left / #rest) + (nth < left % #rest and 1 or 0)
    end
    return shares
end

local names = {}
for name in pairs(others) do names[#names + 1] = name end
names[#names + 1] = own
table.sort(names)

-- Ours of one pool, by purpose: max-min, but never what others have not given back.
local function share(name, limit, reserve, mine, held_all, held_lent)
    local processes, at_own = {}, 0
    local room, room_to_lend = limit, limit - reserve
    for _, id in ipairs(names) do
        local theirs = id ~= own and others[id].pools[name]
        if id == own then
            processes[#processes + 1] = mine
            at_own = #processes
        elseif theirs then
            processes[#processes + 1] = theirs
            room, room_to_lend = room - theirs[5], room_to_lend - theirs[6]
        end
    end
    if now - origin.born < ttl then
        room, room_to_lend = math.min(room, held_all), math.min(room_to_lend, held_lent)
    end
    room, room_to_lend = math.max(0, room), math.max(0, room_to_lend)
    local left, lent, granted = limit, limit - reserve, {}
    for rank = 1, 4 do
        local wants = {}
        for at, wanted in ipairs(processes) do wants[at] = wanted[rank] end
        local most = rank == 1 and left or math.min(left, lent)
        local given = level(most, wants, math.floor(now / TURN_MS))
        for _, one in ipairs(given) do
            left = left - one
            if rank > 1 then lent = lent - one end
        end
        local free = rank == 1 and room or math.min(room, room_to_lend)
        granted[rank] = math.min(given[at_own], free)
        room = room - granted[rank]
        if rank > 1 then room_to_lend = room_to_lend - granted[rank] end
    end
    return granted
end

local limit, reserve = origin_pool()
local reply = { late and "LATER_KNOWN" or "GRANTED", -1, limit, origin.phase,
    origin.phase == "open" and origin.until_ms - now or 0, origin.era, #names }

if rate > 0 and not late then
    local burst = math.max(1, rate * BURST_S)
    local since = math.max(0, now - origin.tokens_at)
    origin.tokens = math.min(burst, origin.tokens + rate * since / 1000)
    origin.tokens_at = now
    local askers, asked = 1, tonumber(starts)
    for _, record in pairs(others) do
        if record.starts > 0 then askers = askers + 1 end
    end
    local given = 0
    if origin.tokens >= 1 then
        given = math.min(asked, math.max(1, math.floor(origin.tokens / askers)))
    end
    origin.tokens = origin.tokens - given
    reply[2] = given
end

if not late then
    local record = { ends = now + ttl, number = number, starts = tonumber(starts), pools = {} }
    local wanted = false
    for name, demand in pairs(cjson.decode(pools)) do
        local of, kept = demand[1], demand[2]
        if name == "" then of, kept = limit, reserve end
        local wants = { unpack(demand, 3, 6) }
        local used = { unpack(demand, 7, 10) }
        local known_all = demand[11] + demand[12] + demand[13] + demand[14]
        local known_lent = known_all - demand[11]
        local granted = { 0, 0, 0, 0 }
        if before or count < MAX_PROCESSES then
            granted = share(name, of, kept, wants, known_all, known_lent)
        end
        local lent = granted[2] + granted[3] + granted[4]
        local used_lent = used[2] + used[3] + used[4]
        record.pools[name] = { wants[1], wants[2], wants[3], wants[4],
            math.max(granted[1] + lent, known_all, used[1] + used_lent),
            math.max(lent, known_lent, used_lent) }
        wanted = true
        reply[#reply + 1] = name
        for rank = 1, 4 do reply[#reply + 1] = granted[rank] end
    end
    if wanted then
        redis.call("HSET", permits, own, cjson.encode(record))
    else
        redis.call("HDEL", permits, own)
    end
    redis.call("HSET", permits, "origin", cjson.encode(origin))
end
return reply
