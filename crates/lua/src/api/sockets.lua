-- Cosockets, and the modules `ngx.ssl`, `ngx.balancer` and `ngx.semaphore`. Runs once when a VM is
-- created, after `prelude.lua`, with the same table of functions.
local core = ...
local ngx = ngx

local type, error, select, tostring, tonumber, setmetatable = type, error, select, tostring, tonumber, setmetatable
local pairs, pcall, require = pairs, pcall, require
local floor = math.floor
local ffi = require "ffi"

local preload = package.preload
local function module(name, value)
    preload[name] = function()
        return value
    end
end

for _, name in pairs { "resty.core.socket", "resty.core.coroutine" } do
    preload[name] = preload[name] or function() return {} end
end

-- Certificates, keys and sessions are `cdata` in lua-resty-core, and libraries check the type. So a
-- script gets a `cdata` without content, and a table with weak keys leads from it to the server's
-- object.
local handle_type = ffi.typeof("struct { int unused; }")
local objects = setmetatable({}, { __mode = "k" })

local function wrap(object, ...)
    if object == nil or type(object) ~= "userdata" then
        return object, ...
    end
    local handle = handle_type()
    objects[handle] = object
    return handle
end

-- Wrapped around a function's last call, this prevents a tail call, which would remove the caller's
-- frame: then error messages would name a wrong place.
local function pass(...)
    return ...
end

local function unwrap(handle)
    if type(handle) == "cdata" then
        return objects[handle]
    end
    return handle
end

-- Sockets
function ngx.socket.connect(host, port, options)
    local socket = ngx.socket.tcp()
    local ok, err
    if type(port) == "table" then
        ok, err = socket:connect(host, port)
    elseif options ~= nil then
        ok, err = socket:connect(host, port, options)
    else
        ok, err = socket:connect(host, port)
    end
    if not ok then
        return nil, err
    end
    return socket
end
ngx.socket.stream = ngx.socket.tcp

local tcp = core.tcp_methods()

do
    -- A reader is an object of the server; the documented API is a function.
    local reader = tcp.receiveuntil
    function tcp.receiveuntil(...)
        local mark, err = reader(...)
        if not mark then
            return nil, err
        end
        local read = mark.read
        return function(...)
            return read(mark, ...)
        end
    end

    local handshake, session = tcp.sslhandshake, tcp.getsslsession
    -- In stream-lua-nginx-module sessions are userdata.
    local is_wrapped = ngx.config.subsystem == "http"
    local function handshaken(given, result, ...)
        if type(result) == "userdata" then
            return given or is_wrapped and wrap(result) or result
        end
        return result, ...
    end
    function tcp.sslhandshake(socket, given, ...)
        if type(given) == "cdata" and objects[given] then
            return handshaken(given, handshake(socket, objects[given], ...))
        elseif not is_wrapped and type(given) == "userdata" and given ~= ngx.null then
            return handshaken(given, handshake(socket, given, ...))
        end
        if given ~= false then
            given = nil
        end
        return handshaken(nil, handshake(socket, given, ...))
    end
    function tcp.getsslsession(socket)
        return wrap(session(socket))
    end

    -- A trusted store is an object of OpenSSL, which the server does not use.
    function tcp.settrustedstore(_, store)
        if store == nil then
            return true
        elseif type(store) ~= "cdata" then
            return nil, "bad store arg: cdata expected, got " .. type(store)
        end
        return nil, "not supported: there are no stores of OpenSSL; lua_ssl_trusted_certificate names whom sockets trust"
    end

    local set_certificate = tcp.setclientcert
    function tcp.setclientcert(socket, chain, key)
        if chain and key then
            if type(chain) ~= "cdata" then
                return nil, "bad cert arg: cdata expected, got " .. type(chain)
            end
            if type(key) ~= "cdata" then
                return nil, "bad pkey arg: cdata expected, got " .. type(key)
            end
            chain, key = objects[chain], objects[key]
            if not chain or not key then
                return nil, "not supported: a certificate and a key of ngx.ssl are wanted"
            end
        end
        return set_certificate(socket, chain, key)
    end
end

-- `ngx.semaphore`
local semaphore = { version = "0.1.32" }
do
    local methods = core.semaphore_methods()
    local post, wait, count = methods.post, methods.wait, methods.count
    local function check(self, method)
        if type(self) ~= "table" or type(self[1]) ~= "userdata" then
            error("not a semaphore instance", 3)
        end
    end
    function methods.post(self, n)
        check(self)
        n = n and tonumber(n) or 1
        if n < 1 then
            error("positive number required", 2)
        end
        return post(self, n)
    end
    function methods.wait(self, seconds)
        check(self)
        if tonumber(seconds) * 1000 < 0 then
            error("no negative number", 2)
        end
        return pass(wait(self, tonumber(seconds)))
    end
    function methods.count(self)
        check(self)
        return count(self)
    end
end
function semaphore.new(n)
    n = tonumber(n) or 0
    if n < 0 then
        error("no negative number", 2)
    end
    return core.semaphore(floor(n))
end
module("ngx.semaphore", semaphore)

-- `ngx.balancer`
local balancer = core.balancer
balancer.version = "0.1.32"
do
    local set_peer, set_timeouts = balancer.set_current_peer, balancer.set_timeouts
    local enable_keepalive = balancer.enable_keepalive
    local in_http = ngx.config.subsystem == "http"
    function balancer.set_current_peer(address, port, host)
        if host ~= nil then
            if not in_http then
                error("bad argument #3 to 'set_current_peer' ('host' not yet implemented in stream subsystem)", 2)
            elseif type(host) ~= "string" then
                error("bad argument #3 to 'set_current_peer' (string expected, got " .. type(host) .. ")")
            end
        end
        return set_peer(address, tonumber(port) or 0, host)
    end
    local function time(value, what)
        if value and (type(value) ~= "number" or value <= 0) then
            error("bad " .. what .. " timeout", 3)
        end
        return value or nil
    end
    function balancer.set_timeouts(connect, send, read)
        return set_timeouts(time(connect, "connect"), time(send, "send"), time(read, "read"))
    end
    local function count(value, at)
        if value and type(value) ~= "number" then
            error("bad argument #" .. at .. " to 'enable_keepalive' (number expected, got " .. type(value) .. ")", 3)
        elseif value and value < 0 then
            error("bad argument #" .. at .. " to 'enable_keepalive' (expected >= 0)", 3)
        end
        return value
    end
    local bind = balancer.bind_to_local_addr
    function balancer.bind_to_local_addr(address)
        if type(address) ~= "string" then
            error("bad argument #1 to 'bind_to_local_addr' (string expected, got " .. type(address) .. ")")
        end
        return bind(address)
    end
    if in_http then
        function balancer.enable_keepalive(idle, requests)
            return enable_keepalive(count(idle, 1), count(requests, 2))
        end
    else
        balancer.recreate_request, balancer.set_upstream_tls = nil, nil
        function balancer.enable_keepalive()
            error("'enable_keepalive' not yet implemented in stream subsystem", 2)
        end
    end
end
module("ngx.balancer", balancer)

-- `ngx.ssl`
local ssl = core.ssl
local offered_ciphers, tls_version, hello_extension, hello_extensions =
    ssl.ciphers, ssl.version, ssl.extension, ssl.extensions
local session_id, get_session, set_session = ssl.session_id, ssl.session, ssl.set_session
local client_random, verify_client, set_protocols = ssl.client_random, ssl.verify, ssl.protocols
ssl.get_req_shared_ssl_ciphers = ssl.shared_ciphers
for _, name in pairs {
    "ciphers", "version", "extension", "extensions", "session_id", "session", "set_session", "client_random", "verify",
    "shared_ciphers", "protocols",
} do
    ssl[name] = nil
end
ssl._VERSION = "0.1.32"
for _, name in pairs { "parse_pem_cert", "parse_der_cert", "parse_pem_priv_key", "parse_der_priv_key" } do
    local parse = ssl[name]
    ssl[name] = function(...)
        return wrap(parse(...))
    end
end
for _, name in pairs { "set_cert", "set_priv_key" } do
    local set = ssl[name]
    ssl[name] = function(handle)
        return set(unwrap(handle))
    end
end
local tls_names = { [0x300] = "SSLv3", [0x301] = "TLSv1", [0x302] = "TLSv1.1", [0x303] = "TLSv1.2", [0x304] = "TLSv1.3" }
local version_names = {}
for _, name in pairs(tls_names) do
    version_names[name] = true
end
ssl.SSL3_VERSION, ssl.TLS1_VERSION, ssl.TLS1_1_VERSION = 0x300, 0x301, 0x302
ssl.TLS1_2_VERSION, ssl.TLS1_3_VERSION = 0x303, 0x304
ssl.get_tls1_version = tls_version
function ssl.get_tls1_version_str()
    local version = tls_version()
    return tls_names[version] or ("unknown version: " .. tostring(version))
end
function ssl.get_client_random(length)
    local random = client_random()
    -- A length of 0 asks for the length.
    return length == 0 and #random or random:sub(1, length or -1)
end
function ssl.verify_client(authorities, depth, trusted)
    return verify_client(authorities and unwrap(authorities), depth, trusted and unwrap(trusted))
end
module("ngx.ssl", ssl)

-- `ngx.ssl.clienthello`: the ClientHello, for `ssl_client_hello_by_lua` only.
local function of_hello(get)
    return function(...)
        if ngx.get_phase() ~= "ssl_client_hello" then
            error("API disabled in the current context", 2)
        end
        return get(...)
    end
end

-- Values that clients send to keep servers from relying on a list (RFC 8701): 0x0a0a, 0x1a1a and so
-- on.
local function without_grease(numbers)
    local rest = {}
    for _, number in pairs(numbers) do
        if number % 256 ~= floor(number / 256) or number % 16 ~= 10 then
            rest[#rest + 1] = number
        end
    end
    return rest
end

-- supported_versions (RFC 8446, 4.2.1): a length, and two bytes per version.
local SUPPORTED_VERSIONS = 43
local function supported_versions()
    local content = hello_extension(SUPPORTED_VERSIONS)
    if not content or #content == 0 or content:byte(1) ~= #content - 1 then
        return nil
    end
    local names = {}
    for at = #content - 1, 2, -2 do
        names[#names + 1] = tls_names[content:byte(at) * 256 + content:byte(at + 1)]
    end
    return names
end

module("ngx.ssl.clienthello", {
    version = "0.1.32",
    get_client_hello_server_name = of_hello(ssl.server_name),
    get_client_hello_ciphers = of_hello(function()
        return without_grease(offered_ciphers())
    end),
    get_client_hello_ext = of_hello(hello_extension),
    get_client_hello_ext_present = of_hello(function()
        return without_grease(hello_extensions())
    end),
    get_supported_versions = of_hello(supported_versions),
    set_protocols = of_hello(function(names)
        local allowed = {}
        for _, name in ipairs(names) do
            if name ~= "SSLv2" and not version_names[name] then
                return nil, "invalid protocols failed"
            end
            allowed[name] = true
        end
        -- Older versions are not there to be allowed.
        if not allowed["TLSv1.2"] and not allowed["TLSv1.3"] then
            return nil, "no supported version is allowed"
        end
        return set_protocols(allowed["TLSv1.2"], allowed["TLSv1.3"])
    end),
})

-- `ngx.ssl.session`
if ngx.config.subsystem == "http" then
    module("ngx.ssl.session", {
        version = "0.1.32",
        get_session_id = session_id,
        get_serialized_session = get_session,
        set_serialized_session = set_session,
    })
end
