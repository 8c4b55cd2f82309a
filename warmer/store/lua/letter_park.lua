local dead, size = unpack(KEYS)
local fields, payload, key, max_letters, max_bytes = unpack(ARGV)

-- Set one letter aside. Beyond the bounds, of number and of bytes, the oldest go.
--
-- `fields`: JSON object of texts; `payload` and `key` are bytes.
-- Atomic, because the count of bytes would drift from what is stored.
--
-- returns PARKED, its id, how many older ones went

local function weight(flat)
    local bytes = 512
    for at = 1, #flat, 2 do
        if flat[at] == "payload" or flat[at] == "key" then bytes = bytes + #flat[at + 1] end
    end
    return bytes
end

local flat = { "payload", payload, "key", key }
for name, value in pairs(cjson.decode(fields)) do
    flat[#flat + 1] = name
    flat[#flat + 1] = value
end
local id = redis.call("XADD", dead, "*", unpack(flat))
local bytes = redis.call("INCRBY", size, weight(flat))
local count = redis.call("XLEN", dead)
local gone = 0
while count > 1 and (count > tonumber(max_letters) or bytes > tonumber(max_bytes)) do
    local oldest = redis.call("XRANGE", dead, "-", "+", "COUNT", 1)[1]
    redis.call("XDEL", dead, oldest[1])
    bytes = redis.call("DECRBY", size, weight(oldest[2]))
    count = count - 1
    gone = gone + 1
end
return { "PARKED", id, gone }
