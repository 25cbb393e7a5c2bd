-- The part of the API that is best written in Lua. Runs once when a VM is created. Its argument is
-- a table of the server's functions that only these files use: scripts never get hold of it.
local core = ...
local ngx = ngx

local type, select, error, pairs, ipairs = type, select, error, pairs, ipairs
local tostring, setmetatable, rawset, rawget = tostring, setmetatable, rawset, rawget
local sub, byte, find, gsub_plain = string.sub, string.byte, string.find, string.gsub
local concat, insert = table.concat, table.insert

-- Constants.
ngx.OK, ngx.ERROR, ngx.AGAIN, ngx.DONE, ngx.DECLINED = 0, -1, -2, -4, -5
ngx.null = core.null

local statuses = {
    CONTINUE = 100, SWITCHING_PROTOCOLS = 101, OK = 200, CREATED = 201, ACCEPTED = 202, NO_CONTENT = 204,
    PARTIAL_CONTENT = 206, SPECIAL_RESPONSE = 300, MOVED_PERMANENTLY = 301, MOVED_TEMPORARILY = 302, SEE_OTHER = 303,
    NOT_MODIFIED = 304, TEMPORARY_REDIRECT = 307, PERMANENT_REDIRECT = 308, BAD_REQUEST = 400, UNAUTHORIZED = 401,
    PAYMENT_REQUIRED = 402, FORBIDDEN = 403, NOT_FOUND = 404, NOT_ALLOWED = 405, NOT_ACCEPTABLE = 406,
    REQUEST_TIMEOUT = 408, CONFLICT = 409, GONE = 410, UPGRADE_REQUIRED = 426, TOO_MANY_REQUESTS = 429, CLOSE = 444,
    ILLEGAL = 451, INTERNAL_SERVER_ERROR = 500, NOT_IMPLEMENTED = 501, METHOD_NOT_IMPLEMENTED = 501,
    BAD_GATEWAY = 502, SERVICE_UNAVAILABLE = 503, GATEWAY_TIMEOUT = 504, VERSION_NOT_SUPPORTED = 505,
    INSUFFICIENT_STORAGE = 507,
}
for name, code in pairs(statuses) do
    ngx["HTTP_" .. name] = code
end

-- nginx's constants of methods, which are bits, so that directives can hold a set of them.
local methods = {
    GET = 2, HEAD = 4, POST = 8, PUT = 16, DELETE = 32, MKCOL = 64, COPY = 128, MOVE = 256, OPTIONS = 512,
    PROPFIND = 1024, PROPPATCH = 2048, LOCK = 4096, UNLOCK = 8192, PATCH = 16384, TRACE = 32768,
}
local method_names = {}
for name, bit in pairs(methods) do
    ngx["HTTP_" .. name] = bit
    method_names[bit] = name
end

local levels = { "EMERG", "ALERT", "CRIT", "ERR", "WARN", "NOTICE", "INFO", "DEBUG" }
for n, name in ipairs(levels) do
    ngx[name] = n
end
ngx.STDERR = 0

function print(...)
    return ngx.log(ngx.NOTICE, ...)
end

-- Coroutines. A coroutine that waits for an operation of the server yields a mark that no script
-- can get hold of; the coroutine that resumed it passes the mark on, up to the server, and the
-- answer down again. So a script's own coroutines may wait, too, and scripts never see that they
-- did.
local waits, gives_way, inner_gave_way = core.waits, core.gives_way, core.inner_gave_way
local resume, yield, create, status, current =
    coroutine.resume, coroutine.yield, coroutine.create, coroutine.status, coroutine.running
local thread_state, is_outermost = core.thread_state, core.is_outermost

-- Coroutines that a script cannot resume, though Lua itself could: light threads and the scripts
-- themselves, which the server resumes, and those that are `busy`: they wait, on behalf of the
-- coroutine that resumed them.
local special, busy, outermost = core.special, "busy", "outermost"

-- Coroutines that wait because one that they have resumed waits for the server.
local resuming = setmetatable({}, { __mode = "k" })

-- The coroutine that a script runs in is noted when the script gets hold of it: scripts must never
-- resume it.
function coroutine.running()
    local co, main = current()
    if co and special[co] == nil and is_outermost() then
        special[co] = outermost
    end
    return co, main
end

-- A coroutine that has yielded to the server is suspended for Lua; for the script it is running.
local function status_of(co)
    if resuming[co] then
        return "normal"
    end
    local kind = special[co]
    if kind == nil then
        return status(co)
    end
    if kind == busy then
        return "running"
    end
    local state = kind == outermost and "running" or thread_state(co)
    local plain = status(co)
    if state == "running" and plain == "normal" or kind == outermost and plain == "dead" then
        return plain
    end
    return state
end
coroutine.status = status_of

-- Why `co` cannot be resumed, in Lua's words. "zombie" is a state of light threads alone.
local function refusal(co)
    local state = status_of(co)
    return "cannot resume " .. (state == "zombie" and "dead" or state) .. " coroutine"
end

local relay

-- Notes that the current coroutine waits on behalf of `co`, and returns the current one.
local function wait_for(co)
    special[co] = busy
    local me = current()
    if me then
        resuming[me] = true
    end
    return me
end

-- The server's answer has arrived: `co` gets it, as what its own `yield` returns.
local function answered(co, me, ...)
    special[co] = nil
    if me then
        resuming[me] = nil
    end
    return relay(co, resume(co, ...))
end

-- Takes what `resume` returned. Every mark is passed upwards, and `co` goes on with the answer; all
-- else is for the script. These are tail calls: a coroutine may wait any number of times.
function relay(co, ok, ...)
    local first = ...
    if ok then
        if first == waits or first == gives_way then
            return answered(co, wait_for(co), yield(first))
        end
        -- The hook that preempts a coroutine yields no values, and so no mark.
        if first == nil and inner_gave_way() then
            return answered(co, wait_for(co), yield(gives_way))
        end
    elseif first == "cannot resume running coroutine" then
        return ok, refusal(co)
    end
    return ok, ...
end

local function resume_own(co, ...)
    if special[co] ~= nil then
        return false, refusal(co)
    end
    return relay(co, resume(co, ...))
end
coroutine.resume = resume_own

-- `coroutine.wrap` raises errors as they are: level 0 adds no place.
local function raise_or_return(ok, ...)
    if not ok then
        error((...), 0)
    end
    return ...
end

function coroutine.wrap(...)
    local f = ...
    if type(f) ~= "function" then
        -- In filters lua-nginx-module leaves coroutines, and their errors, to LuaJIT.
        local is_filter = core.phase():find("_filter", 1, true)
        local got = select("#", ...) == 0 and "no value" or type(f)
        local expected = is_filter and "function expected, got " .. got or "Lua function expected"
        error("bad argument #1 to '?' (" .. expected .. ")", 2)
    end
    local co = create(f)
    return function(...)
        return raise_or_return(resume_own(co, ...))
    end
end

-- A script's globals are shared by all requests of a loop, which is hardly ever what is meant. Most
-- are a forgotten `local`; the warning is lua-nginx-module's, and is written once per name.
local warned = {}
setmetatable(_G, {
    __newindex = function(t, name, value)
        rawset(t, name, value)
        local phase = core.phase()
        if phase ~= "init" and phase ~= "init_worker" and type(value) ~= "function" and not warned[name] then
            warned[name] = true
            ngx.log(ngx.WARN, "writing a global Lua variable ('", tostring(name), "') which may lead to race conditions ",
                "between concurrent requests, so prefer the use of 'local' variables", debug.traceback("", 2))
        end
    end,
})

local builtin_open = io.open

-- LuaJIT's function, but what the sandbox denies is in the error log (`worker_sandbox`): a script
-- sees EACCES, and its administrator would look for the reason in the file's permissions.
function io.open(name, mode)
    local file, message, number = builtin_open(name, mode)
    -- EACCES.
    if number == 13 then
        core.note_refusal(name)
    end
    return file, message, number
end

-- `require`: where a script may wait, files are looked for and read by a thread of the pool,
-- because a slow disk would stop the loop with all its connections. While one coroutine loads a
-- module, others that want it wait, so that its code runs once.
local builtin_require, loaded, loaders = require, package.loaded, {}
local load_text, running, pcall = loadstring, current, pcall

local function load_library(name)
    local code, place = core.read_library(name, package.path)
    -- Another coroutine's patience ended, and it was quicker.
    if loaded[name] ~= nil then
        return loaded[name]
    end
    if not code then
        -- A module in C, or none at all: LuaJIT loads it, or has the message.
        return builtin_require(name)
    end
    -- A first line that begins with `#` is for the shell; Lua's own loader skips it. As a comment
    -- it still counts, so that the numbers of lines in messages are right.
    if byte(code) == 35 then
        code = "--" .. code
    end
    local chunk, err = load_text(code, "@" .. place)
    if not chunk then
        error("error loading module '" .. name .. "' from file '" .. place .. "':\n\t" .. err, 0)
    end
    -- As Lua's `require`: what the module returns, or what it has put there itself, or true.
    local value = chunk(name)
    if value ~= nil then
        loaded[name] = value
    elseif loaded[name] == nil then
        loaded[name] = true
    end
    return loaded[name]
end

-- How long a coroutine waits for another one to load a module, in seconds, before it loads the
-- module itself: the other one's request may have been aborted meanwhile.
local patience = 1

function require(name)
    -- The common case is left to LuaJIT, as is everything where a script cannot wait.
    local value = loaded[name]
    if value ~= nil and not loaders[name] then
        return builtin_require(name)
    end
    if type(name) ~= "string" or package.preload[name] or not core.may_wait() then
        return builtin_require(name)
    end
    local me = running()
    if loaders[name] == me then
        error("loop or previous error loading module '" .. name .. "'", 2)
    end
    local waited = 0
    while loaders[name] and waited < patience do
        ngx.sleep(0.001)
        waited = waited + 0.001
    end
    if loaded[name] ~= nil then
        return loaded[name]
    end
    loaders[name] = me
    local ok, result = pcall(load_library, name)
    loaders[name] = nil
    if not ok then
        error(result, 0)
    end
    return result
end

-- The fields of `ngx` that belong to the current request.
local fields = {
    ctx = core.get_ctx,
    status = core.get_status,
    headers_sent = core.headers_sent,
    is_subrequest = core.is_subrequest,
}
setmetatable(ngx, {
    __index = function(_, name)
        local get = fields[name]
        return get and get()
    end,
    __newindex = function(t, name, value)
        if name == "ctx" then
            core.set_ctx(value)
        elseif name == "status" then
            core.set_status(value)
        elseif fields[name] then
            error("field \"" .. name .. "\" of ngx can not be set", 2)
        else
            rawset(t, name, value)
        end
    end,
})

-- `ngx.arg`: the arguments of `set_by_lua`, or a body filter's chunk and its end-of-file flag.
ngx.arg = setmetatable({}, {
    __index = function(_, n) return core.get_arg(n) end,
    __newindex = function(_, n, value) core.set_arg(n, value) end,
})

-- Headers as tables. The names are in lower case; a lookup takes any case, and `_` for `-`, as with
-- lua-nginx-module.
local lookups = {
    __index = function(t, name)
        local lower = tostring(name):lower()
        local value = rawget(t, lower)
        if value ~= nil then
            return value
        end
        return rawget(t, (gsub_plain(lower, "_", "-")))
    end,
}
local function header_table(get)
    return function(max, raw)
        local headers, err = get(max, raw)
        if not raw then
            setmetatable(headers, lookups)
        end
        if err then
            return headers, err
        end
        return headers
    end
end
ngx.req.get_headers = header_table(core.req_get_headers)
ngx.resp.get_headers = header_table(core.resp_get_headers)

-- `ngx.req`
function ngx.req.set_method(method)
    if type(method) ~= "number" then
        error("bad method number", 2)
    end
    local name = method_names[method - method % 1]
    if not name then
        error("unsupported HTTP method: " .. tostring(method), 2)
    end
    return core.req_set_method(name)
end

-- `ngx.location`
local function method_of(options)
    local method = options.method
    if method == nil then
        return "GET"
    end
    return method_names[method] or error("unsupported HTTP method: " .. tostring(method), 3)
end

local function flat(table)
    local list = {}
    for name, value in pairs(table) do
        list[#list + 1] = tostring(name)
        list[#list + 1] = tostring(value)
    end
    return list
end

local function request_of(at, uri, options)
    if uri == nil then
        error("query argument " .. at .. " expecting one or two arguments", 3)
    end
    if options ~= nil and type(options) ~= "table" then
        error("expecting table as the 2nd argument for subrequest " .. at .. ", but got " .. type(options), 3)
    end
    if type(uri) == "number" then
        uri = tostring(uri)
    elseif type(uri) ~= "string" then
        error("bad argument #3 to '?' (string expected, got " .. type(uri) .. ")", 3)
    end
    options = options or {}
    local args = options.args
    if type(args) == "table" then
        args = ngx.encode_args(args)
    end
    local vars, headers
    if options.vars then
        if type(options.vars) ~= "table" then
            error("Bad vars option value", 3)
        end
        for name, value in pairs(options.vars) do
            if type(name) ~= "string" then
                error('attempt to use a non-string key in the "vars" option table', 3)
            elseif type(value) ~= "string" and type(value) ~= "number" then
                error("attempt to use bad variable value type " .. type(value), 3)
            end
        end
        vars = flat(options.vars)
    end
    if options.headers ~= nil then
        if type(options.headers) ~= "table" then
            error("Bad headers option value", 3)
        end
        headers = flat(options.headers)
    end
    return {
        uri = uri,
        args = args and tostring(args) or nil,
        method = method_of(options),
        body = options.body and tostring(options.body) or nil,
        ctx = options.ctx,
        share = options.share_all_vars and true or false,
        copy = options.copy_all_vars and true or false,
        forward = options.always_forward_body and true or false,
        vars = vars,
        headers = headers,
    }
end

local function with_lookups(response, ...)
    if response == nil then
        return
    end
    setmetatable(response.header, lookups)
    return response, with_lookups(...)
end

ngx.location = {}
function ngx.location.capture(...)
    local given = select("#", ...)
    if given ~= 1 and given ~= 2 then
        error("expecting one or two arguments", 2)
    end
    core.need_request_control()
    return with_lookups(core.capture({ request_of(0, ...) }))
end

function ngx.location.capture_multi(list)
    core.need_request_control()
    local wanted = {}
    for n, one in ipairs(list) do
        wanted[n] = request_of(n - 1, one[1], one[2])
    end
    if #wanted == 0 then
        return
    end
    return with_lookups(core.capture(wanted))
end

-- `ngx.exec`, `ngx.req.set_uri`
function ngx.exec(...)
    local given = select("#", ...)
    if given ~= 1 and given ~= 2 then
        error("expecting one or two arguments, but got " .. given, 2)
    end
    local uri, args = ...
    if type(args) == "table" then
        args = ngx.encode_args(args)
    end
    return core.exec(uri, args and tostring(args) or nil)
end

-- `ngx.timer`
local function need_callback(given)
    if given < 2 then
        error("expecting at least 2 arguments but got " .. given, 3)
    end
end

function ngx.timer.at(...)
    need_callback(select("#", ...))
    local delay = ...
    return core.timer(delay, false, select(2, ...))
end

function ngx.timer.every(...)
    need_callback(select("#", ...))
    local delay = ...
    if type(delay) ~= "number" and type(delay) ~= "string" then
        return core.timer(delay, true, select(2, ...))
    end
    delay = tonumber(delay)
    if not delay or delay <= 0 then
        error("delay cannot be " .. (delay == 0 and "zero" or "negative"), 2)
    end
    return core.timer(delay, true, select(2, ...))
end

-- Modules that are part of the server, so that no C library is needed for them.
local preload = package.preload
local function module(name, value)
    preload[name] = function()
        return value
    end
end

ngx.config.ngx_lua_version = 10026
module("ngx", ngx)

module("ngx.base64", {
    encode_base64url = core.encode_base64url,
    decode_base64url = core.decode_base64url,
})

-- Modules of lua-resty-core (more are in `surface.lua`). Scripts require them for their effect on
-- the API; here the API is complete without.
preload["resty.core.socket.tcp"] = function()
    return {}
end

module("resty.string", {
    to_hex = function(text)
        return (gsub_plain(text, ".", function(c)
            return string.format("%02x", byte(c))
        end))
    end,
    atoi = function(text)
        return tonumber(text)
    end,
})

-- cjson
-- A long text is read in parts: between them the script can be suspended, so that the loop serves others.
local LONG_JSON = 65536
local function json_decode(text)
    if type(text) ~= "string" or #text < LONG_JSON then
        return core.json_decode(text)
    end
    local value, reader, open, problem
    repeat
        value, reader, open, problem = core.json_decode_part(text, reader, open)
    until not reader
    if problem then
        error(problem, 2)
    end
    return value
end
preload["cjson"] = function()
    local cjson = {
        encode = core.json_encode,
        decode = json_decode,
        null = core.null,
        empty_array = core.empty_array,
        array_mt = core.array_mt,
        empty_array_mt = core.array_mt,
        _NAME = "cjson",
        _VERSION = "2.1.0",
    }
    local function setting(default)
        return function(value)
            return value == nil and default or value
        end
    end
    cjson.encode_empty_table_as_object = core.json_empty_table
    cjson.encode_sparse_array = function() return false, 2, 10 end
    cjson.encode_max_depth = setting(1000)
    cjson.decode_max_depth = setting(1000)
    cjson.encode_number_precision = setting(14)
    cjson.encode_keep_buffer = setting(true)
    cjson.encode_invalid_numbers = setting(false)
    cjson.decode_invalid_numbers = setting(true)
    cjson.encode_escape_forward_slash = setting(true)
    cjson.decode_array_with_array_mt = setting(false)
    function cjson.new() return cjson end
    return cjson
end
preload["cjson.safe"] = function()
    local cjson = require "cjson"
    local safe = {}
    for name, value in pairs(cjson) do
        safe[name] = value
    end
    function safe.encode(value)
        local ok, text = pcall(cjson.encode, value)
        if not ok then
            return nil, (gsub_plain(tostring(text), "^[^:]*:%d*: ", ""))
        end
        return text
    end
    function safe.decode(text)
        local ok, value = pcall(cjson.decode, text)
        if not ok then
            return nil, (gsub_plain(tostring(value), "^[^:]*:%d*: ", ""))
        end
        return value
    end
    function safe.new() return safe end
    return safe
end

-- Stream has sessions and no requests: a script that uses these finds nil, as with
-- stream-lua-nginx-module.
if ngx.config.subsystem == "stream" then
    for _, name in ipairs { "header", "resp", "location", "redirect", "exec", "send_headers" } do
        ngx[name] = nil
    end
    fields.status, fields.headers_sent, fields.is_subrequest = nil, nil, nil
    ngx.req = { socket = ngx.req.socket, start_time = ngx.req.start_time }
    for _, name in ipairs { "ngx.req", "ngx.resp" } do
        preload[name] = nil
    end
end
