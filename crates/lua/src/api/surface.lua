-- Functions that lua-resty-core has in Lua: they take any value as text, and their errors are its
-- own, which scripts and test suites compare. Runs after `prelude.lua`, with the same table.
local core = ...
local ngx = ngx

local type, error, tostring, tonumber, setmetatable = type, error, tostring, tonumber, setmetatable
local version = "0.1.33"
local sub, concat, preload = string.sub, table.concat, package.preload

local function module(name, value)
    preload[name] = function()
        return value
    end
end

-- `ngx.re`: the functions that call back into the script are in Lua, because a script cannot wait
-- below a C function.
local re = ngx.re
local begin, following, replace_all = core.re_begin, core.re_next, core.re_replace

-- Drops the position, which only these functions need: a script gets the captures, or nil and why.
local function first_only(found, from)
    if found or from == nil then
        return found
    end
    return nil, from
end

function re.gmatch(subject, regex, options)
    local state, err = begin(subject, regex, options)
    if not state then
        return nil, err
    end
    return function()
        return first_only(following(state))
    end
end

local function substitute(subject, regex, replace, options, once)
    if type(replace) ~= "function" then
        return replace_all(subject, regex, tostring(replace), options, once)
    end
    local state, err = begin(subject, regex, options)
    if not state then
        return nil, nil, err
    end
    subject = tostring(subject)
    local out, count, last = {}, 0, 1
    while true do
        local captures, from, to = following(state)
        if not captures then
            if from then
                return nil, nil, from
            end
            break
        end
        out[#out + 1] = sub(subject, last, from - 1)
        out[#out + 1] = tostring(replace(captures))
        count, last = count + 1, to + 1
        if once then
            break
        end
    end
    if count == 0 then
        return subject, 0
    end
    out[#out + 1] = sub(subject, last)
    return concat(out), count
end

function re.sub(subject, regex, replace, options)
    return substitute(subject, regex, replace, options, true)
end

function re.gsub(subject, regex, replace, options)
    return substitute(subject, regex, replace, options, false)
end

-- The module `ngx.re`.
local split = { version = version }
local at_place = core.re_at

-- The pieces of a text between matches, as the documentation of `ngx.re` has it: an empty match
-- splits between two bytes, but not before the first one, and a match's first capture is a piece,
-- too.
function split.split(subject, regex, options, ctx, max, result)
    subject = tostring(subject)
    ctx = ctx or {}
    ctx.pos = ctx.pos or 1
    max = max or 0
    if result and type(result) ~= "table" then
        error("res is not a table", 2)
    end
    local out, length, begun = result or {}, #subject, ctx.pos
    if begun > length then
        out[1] = nil
        return out
    end
    local state, problem = begin(subject, regex, options)
    if not state then
        return nil, problem
    end
    local pieces, n, last_empty = 1, 0, nil
    ctx.pos = begun - 1
    while max <= 0 or pieces < max do
        local from, to, group, err = at_place(state, ctx.pos)
        if err then
            return nil, err
        end
        if not from then
            break
        end
        ctx.pos = from == to and to + 1 or to
        begun = last_empty or begun
        if from == to then
            last_empty = from + 1
        end
        if from + 1 > begun or not last_empty then
            pieces, n = pieces + 1, n + 1
            out[n] = sub(subject, begun, from)
            if group then
                n = n + 1
                out[n] = group
            end
            begun = to + 1
            if begun > length then
                break
            end
        end
    end
    if max <= 0 and begun > length then
        while n > 0 and out[n] == "" do
            out[n] = nil
            n = n - 1
        end
    else
        n = n + 1
        out[n] = sub(subject, begun)
    end
    out[n + 1] = nil
    return out
end

function split.opt(option, value)
    if option ~= "jit_stack_size" then
        error("unrecognized option name", 2)
    end
    local err = core.re_stack_size(value)
    if err then
        error(err, 2)
    end
end
module("ngx.re", split)

-- Fields of the request.
local function set_req_header(name, value, override)
    if name == nil then
        error("bad 'name' argument: string expected, got nil", 3)
    end
    name = tostring(name)
    if value == nil then
        if not override then
            error("bad 'value' argument: string or table expected, got nil", 3)
        end
        return core.req_set_header(name)
    end
    if type(value) ~= "table" then
        value = tostring(value)
        if override then
            return core.req_set_header(name, value ~= "" and value or nil)
        end
        return core.req_add_header(name, value)
    end
    local n = #value
    if n == 0 and not override then
        error("bad 'value' argument: non-empty table expected", 3)
    end
    if override then
        core.req_set_header(name)
    end
    for at = 1, n do
        value[at] = tostring(value[at])
        core.req_add_header(name, value[at])
    end
end

function ngx.req.set_header(name, value)
    set_req_header(name, value, true)
end

function ngx.req.clear_header(name)
    core.req_set_header(tostring(name))
end

-- Arguments.
local read_args = core.req_get_uri_args

function ngx.req.get_uri_args(max, result)
    if result then
        if type(result) ~= "table" then
            error("bad argument #1 to 'clear_tab' (table expected, got " .. type(result) .. ")", 2)
        end
        for key in pairs(result) do
            result[key] = nil
        end
    end
    return read_args(max, result or {})
end
ngx.req.get_query_args = ngx.req.get_uri_args

-- The number of a phase. The request that lua-resty-core's takes is the current one.
local phases = {
    set = 0x1, rewrite = 0x2, access = 0x4, content = 0x8, log = 0x10, header_filter = 0x20, body_filter = 0x40, timer = 0x80,
    init_worker = 0x100, balancer = 0x200, ssl_cert = 0x400, ssl_session_store = 0x800, ssl_session_fetch = 0x1000,
    exit_worker = 0x2000, ssl_client_hello = 0x4000, server_rewrite = 0x8000, precontent = 0x20000,
}
function ngx.get_raw_phase()
    return phases[ngx.get_phase()]
end

-- Modules of lua-resty-core.
module("ngx.req", {
    version = version,
    add_header = function(name, value)
        set_req_header(name, value, false)
    end,
})

local add_header = core.resp_add_header
module("ngx.resp", {
    version = version,
    bypass_if_checks = core.bypass_if_checks,
    add_header = function(name, value)
        if value == nil then
            error("invalid header value", 2)
        end
        name = tostring(name)
        if type(value) ~= "table" then
            return add_header(name, tostring(value))
        end
        for at = 1, #value do
            value[at] = tostring(value[at])
            add_header(name, value[at])
        end
    end,
    set_status = function(status, reason)
        core.set_status(tonumber(status), reason)
    end,
    bypass_if_checks = core.bypass_if_checks,
})

do
    local missing = "missing the capture error log patch for nginx"
    module("ngx.errlog", {
        version = version,
        raw_log = core.raw_log,
        get_sys_filter_level = function()
            return core.log_level()
        end,
        set_filter_level = function(level)
            if not level then
                return nil, 'missing "level" argument'
            end
            return nil, missing
        end,
        get_logs = function()
            return nil, missing
        end,
    })
end

module("ngx.process", {
    version = version,
    type = function()
        return ngx.get_phase() == "init" and "master" or "worker"
    end,
    enable_privileged_agent = function(connections)
        if ngx.get_phase() ~= "init" then
            return nil, "API disabled in the current context"
        end
        if type(connections or 0) ~= "number" or (connections or 0) < 0 then
            return nil, "bad 'connections' argument: number expected and greater than 0"
        end
        return nil, "there is no privileged agent"
    end,
    signal_graceful_exit = function() end,
    get_master_pid = function()
        return core.parent_pid()
    end,
})

-- A file as the request's body. Its content is held in memory from then on, but scripts still ask
-- for its name, and are told it unless the file is to be removed.
do
    local open, finish, take = core.req_open_file, ngx.req.finish_body, core.req_take_file
    local append = ngx.req.append_body
    function ngx.req.set_body_file(...)
        local ok, err = open(...)
        if not ok then
            error(err, 2)
        end
        take()
    end
    function ngx.req.append_body(...)
        local _, err = append(...)
        if err then
            error(err, 2)
        end
    end
    function ngx.req.finish_body(...)
        local ok, err = finish(...)
        if err then
            error(err, 2)
        elseif ok then
            take()
        end
    end
end

-- The parts of lua-resty-core that other libraries use.
preload["resty.core.base"] = function()
    local ffi = require "ffi"
    local new_tab = require "table.new"
    local clear_tab = require "table.clear"

    local base = {
        version = version,
        new_tab = new_tab,
        clear_tab = clear_tab,
        FFI_OK = 0, FFI_ERROR = -1, FFI_AGAIN = -2, FFI_BUSY = -3, FFI_DONE = -4, FFI_DECLINED = -5,
        FFI_NO_REQ_CTX = -100, FFI_BAD_CONTEXT = -101,
    }

    local buffer_size, buffer = 4096, nil
    local size_of_one, message_of_one = ffi.new("size_t[1]"), ffi.new("char *[1]")

    function base.get_string_buf_size()
        return buffer_size
    end

    function base.set_string_buf_size(size)
        buffer_size, buffer = size, nil
    end

    -- Memory for C functions: the same for all who ask for no more than the usual size.
    function base.get_string_buf(size, own)
        if size > buffer_size or own then
            return ffi.new("char[?]", size)
        end
        buffer = buffer or ffi.new("char[?]", buffer_size)
        return buffer
    end

    function base.get_size_ptr()
        return size_of_one
    end

    function base.get_errmsg_ptr()
        return message_of_one
    end

    function base.get_request()
        return core.has_request() or nil
    end

    function base.allows_subsystem(...)
        local names = { ... }
        for _, name in ipairs(names) do
            if name == ngx.config.subsystem then
                return
            end
        end
        error("unsupported subsystem: " .. ngx.config.subsystem, 2)
    end

    -- Puts a value into a table at a number, which is free again when the table's element is.
    function base.ref_in_table(t, value)
        if value == nil then
            return -1
        end
        local place = #t + 1
        t[place] = value
        return place
    end
    return base
end

local get_ctx = core.get_ctx
module("resty.core.ctx", {
    _VERSION = version,
    get_ctx_table = function(ctx)
        return get_ctx(ctx)
    end,
})
module("resty.core.request", {
    version = version,
    set_req_header = set_req_header,
})
module("resty.core.regex", {
    version = version,
    is_regex_cache_empty = core.re_cache_is_empty,
})
preload["resty.core.time"] = function()
    local ffi = require "ffi"
    ffi.cdef [[ int weir_clock(int clock, long *seconds) asm("clock_gettime"); ]]
    local clock, parts = ffi.C.weir_clock, ffi.new("long[2]")
    local function monotonic()
        clock(1, parts)
        return tonumber(parts[0]) * 1000 + math.floor(tonumber(parts[1]) / 1000000)
    end
    return {
        version = version,
        monotonic_msec = monotonic,
        monotonic_time = function()
            return monotonic() / 1000
        end,
    }
end
module("resty.core.utils", {
    version = version,
    str_replace_char = function(text, from, to)
        if #from ~= 1 or #to ~= 1 then
            return text
        end
        return (string.gsub(text, "[" .. (string.find(from, "%w") and from or "%" .. from) .. "]", { [from] = to }))
    end,
})
for _, name in ipairs {
    "base64", "coroutine", "exit", "hash", "ndk", "param", "phase", "response", "shdict", "socket", "uri", "var",
} do
    module("resty.core." .. name, { version = version })
end
for _, name in ipairs { "misc", "worker" } do
    module("resty.core." .. name, { _VERSION = version })
end
-- Loaded from the start, as lua-nginx-module loads it.
package.loaded["resty.core"] = { version = version }
module("resty.core", package.loaded["resty.core"])

-- The functions on tables that OpenResty's branch of LuaJIT adds.
module("table.isempty", function(t)
    return next(t) == nil
end)
module("table.nkeys", function(t)
    local n = 0
    for _ in pairs(t) do
        n = n + 1
    end
    return n
end)
module("table.isarray", function(t)
    for key in pairs(t) do
        if type(key) ~= "number" or key < 1 or key % 1 ~= 0 then
            return false
        end
    end
    return true
end)
module("table.clone", function(t)
    local copy = {}
    for key, value in next, t do
        copy[key] = value
    end
    return copy
end)

-- `ndk.set_var`: directives of the kind of `set_escape_uri`, called as functions.
do
    local format, gsub, char, byte, floor = string.format, string.gsub, string.char, string.byte, math.floor

    local function to_hex(text)
        return (gsub(text, ".", function(c)
            return format("%02x", byte(c))
        end))
    end

    local json_escapes = {
        ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t",
    }
    local directives = {
        set_unescape_uri = ngx.unescape_uri,
        set_escape_uri = ngx.escape_uri,
        set_quote_sql_str = ngx.quote_sql_str,
        set_quote_json_str = function(text)
            if text == "" then
                return "null"
            end
            return '"' .. gsub(text, '[%c"\\\127]', function(c)
                return json_escapes[c] or byte(c) ~= 127 and format("\\u%04x", byte(c)) or c
            end) .. '"'
        end,
        set_encode_base64 = ngx.encode_base64,
        set_decode_base64 = function(text)
            return ngx.decode_base64(text) or ""
        end,
        set_md5 = ngx.md5,
        set_sha1 = function(text)
            return to_hex(ngx.sha1_bin(text))
        end,
        set_hmac_sha1 = ngx.hmac_sha1,
        set_encode_hex = to_hex,
        set_decode_hex = function(text)
            if #text % 2 == 1 or string.find(text, "%X") then
                error("calling directive set_decode_hex failed with code -1", 3)
            end
            return (gsub(text, "%x%x", function(digits)
                return char(tonumber(digits, 16))
            end))
        end,
    }

    local digits = "0123456789abcdefghijklmnopqrstuv"
    function directives.set_encode_base32(text)
        local out, bits, held = {}, 0, 0
        local function put(n)
            out[#out + 1] = sub(digits, n + 1, n + 1)
        end
        for at = 1, #text do
            held, bits = held % 32 * 256 + byte(text, at), bits + 8
            while bits >= 5 do
                bits = bits - 5
                put(floor(held / 2 ^ bits) % 32)
            end
        end
        if bits > 0 then
            put(held * 2 ^ (5 - bits) % 32)
        end
        return concat(out) .. string.rep("=", -#out % 8)
    end

    local functions = {}
    for name, directive in pairs(directives) do
        functions[name] = function(text, ...)
            return directive(tostring(text), ...)
        end
    end
    rawset(_G, "ndk", {
        set_var = setmetatable({}, {
            __index = function(_, name)
                return functions[name] or error('ndk.set_var: directive "' .. tostring(name)
                    .. '" not found or does not use ndk_set_var_value', 2)
            end,
            __newindex = function()
                error("not allowed", 2)
            end,
        }),
    })
    module("ndk", ndk)
end

-- `ngx.ocsp`
local responder_of, ocsp_request, ocsp_validate = core.ocsp_responder, core.ocsp_request, core.ocsp_validate
module("ngx.ocsp", {
    version = version,
    set_ocsp_status_resp = core.ocsp_staple,
    get_ocsp_responder_from_der_chain = function(chain, length)
        local url, err = responder_of(chain)
        if url and length and #url > length then
            return sub(url, 1, length), "truncated"
        end
        return url, err
    end,
    create_ocsp_request = function(chain, length)
        local request, err = ocsp_request(chain)
        if request and length and #request > length then
            return nil, "output buffer too small: " .. #request .. " > " .. length
        end
        return request, err
    end,
    validate_ocsp_response = function(response, chain, length)
        local ok, what = ocsp_validate(response, chain)
        if not ok and length then
            what = sub(what, 1, length)
        end
        return ok, what
    end,
})

-- Stream has sessions and no requests.
if ngx.config.subsystem == "stream" then
    ngx.req.set_header, ngx.req.clear_header = nil, nil
    ngx.req.get_uri_args, ngx.req.get_query_args, ngx.req.set_body_file = nil, nil, nil
    ngx.req.append_body, ngx.req.finish_body = nil, nil
    preload["ngx.req"], preload["ngx.resp"] = nil, nil
end
