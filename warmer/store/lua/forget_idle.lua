local events = unpack(KEYS)
local group, idle_ms = unpack(ARGV)

-- Remove the consumers that hold nothing and have not asked for so long: their processes died.
--
-- Atomic, because one that only slept may ask between the look and the removal, and what it was
-- just given would be lost with its name.
--
-- returns FORGOTTEN, number removed

local function fields_of(flat)
    local fields = {}
    for at = 1, #flat, 2 do fields[flat[at]] = flat[at + 1] end
    return fields
end

local consumers = redis.pcall("XINFO", "CONSUMERS", events, group)
if consumers.err then
    -- No log or no group, so nobody either; the next read makes both.
    consumers = {}
end
local forgotten = 0
for _, flat in ipairs(consumers) do
    local consumer = fields_of(flat)
    if consumer.pending == 0 and consumer.idle >= tonumber(idle_ms) then
        redis.call("XGROUP", "DELCONSUMER", events, group, consumer.name)
        forgotten = forgotten + 1
    end
end
return { "FORGOTTEN", forgotten }
