-- What a script may name: Redis 7 and Valkey give it Lua 5.1 and these.
std = "lua51"
read_globals = {
    "redis", "KEYS", "ARGV", "bit", "cjson", "cmsgpack", "struct",
    table = { fields = { "unpack" } },
}
max_line_length = 100
