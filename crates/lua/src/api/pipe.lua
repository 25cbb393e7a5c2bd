-- `ngx.pipe`: the arguments of `spawn`, and the methods of a running process. Runs once when a VM
-- is created.
local core = ...
local ngx = ngx

local type, error, tostring, tonumber, ipairs = type, error, tostring, tonumber, ipairs
local concat, find = table.concat, string.find

local methods = core.pipe_methods()
local set_times, read, send, close = methods.set_times, methods.read, methods.send, methods.close
local wait_for_end, signal, pid = methods.wait_for_end, methods.signal, methods.pid
for _, name in ipairs { "set_times", "read", "send", "close", "wait_for_end", "signal" } do
    methods[name] = nil
end

local function check(process)
    if type(process) ~= "userdata" then
        error("not a process instance", 3)
    end
end

function methods.pid(process)
    check(process)
    return pid(process)
end

-- Wrapped around a function's last call, this prevents a tail call, which would remove the caller's
-- frame: then error messages would name a wrong place.
local function pass(...)
    return ...
end

local most = 0xffffffff
local names = { "write_timeout", "stdout_read_timeout", "stderr_read_timeout", "wait_timeout" }

local function check_times(times, level)
    for n = 1, 4 do
        local time = times[n]
        if time and (time < 0 or time > most) then
            error("bad " .. names[n] .. " option", level + 1)
        end
    end
    return times[1], times[2], times[3], times[4]
end

function methods.set_timeouts(process, ...)
    check(process)
    return set_times(process, check_times({ ... }, 2))
end

for name, errors in pairs { stdout = false, stderr = true } do
    methods[name .. "_read_all"] = function(process)
        check(process)
        return pass(read(process, errors, "all"))
    end
    methods[name .. "_read_line"] = function(process)
        check(process)
        return pass(read(process, errors, "line"))
    end
    methods[name .. "_read_bytes"] = function(process, n)
        if n <= 0 then
            if n < 0 then
                error("bad len argument", 2)
            end
            return ""
        end
        check(process)
        return pass(read(process, errors, "bytes", n))
    end
    methods[name .. "_read_any"] = function(process, n)
        n = tonumber(n)
        if not n or n <= 0 then
            error("bad max argument", 2)
        end
        check(process)
        return pass(read(process, errors, "any", n))
    end
end

function methods.write(process, data)
    check(process)
    local kind = type(data)
    if kind == "table" then
        data = concat(data, "")
    elseif kind == "number" then
        data = tostring(data)
    elseif kind ~= "string" then
        error("bad data arg: string, number, or table expected, got " .. kind, 2)
    end
    return pass(send(process, data))
end

function methods.shutdown(process, way)
    check(process)
    if way ~= "stdin" and way ~= "stdout" and way ~= "stderr" then
        error("bad shutdown arg: " .. way, 2)
    end
    return pass(close(process, way))
end

function methods.wait(process)
    check(process)
    return pass(wait_for_end(process))
end

function methods.kill(process, number)
    check(process)
    if type(number) ~= "number" then
        error("bad signal arg: number expected, got " .. tostring(number), 2)
    end
    return pass(signal(process, number))
end

local function words_of(arguments)
    local kind = type(arguments)
    if kind == "string" then
        return { "/bin/sh", "-c", arguments }
    elseif kind ~= "table" then
        error("bad args arg: table expected, got " .. kind, 3)
    elseif arguments[1] == nil then
        error("bad args arg: non-empty table expected", 3)
    end
    local words = {}
    for n, word in ipairs(arguments) do
        words[n] = tostring(word)
    end
    return words
end

local function environment_of(list)
    if list == nil then
        return nil
    elseif type(list) ~= "table" then
        error("bad environ option: table expected, got " .. type(list), 3)
    end
    local entries = {}
    for n, entry in ipairs(list) do
        local where = "bad value at index " .. n .. " of environ option: "
        if type(entry) ~= "string" then
            error(where .. "string expected, got " .. type(entry), 3)
        elseif not find(entry, "=", 2, true) then
            error(where .. "'name=[value]' format expected, got '" .. entry .. "'", 3)
        end
        entries[n] = entry
    end
    return entries[1] and entries or nil
end

local usual = 10000

local function spawn(arguments, options)
    if ngx.get_phase() == "init" then
        error("API disabled in the current context", 2)
    end
    local words = words_of(arguments)
    options = options or {}
    if options.buffer_size then
        local size = tonumber(options.buffer_size)
        if not size or size < 1 then
            error("bad buffer_size option", 2)
        end
    end
    local environment = environment_of(options.environ)
    local write, output, errors, ending = check_times({
        options.write_timeout or usual, options.stdout_read_timeout or usual,
        options.stderr_read_timeout or usual, options.wait_timeout or usual,
    }, 2)
    local process, err = core.pipe_spawn(words, environment, options.merge_stderr and true or false)
    if not process then
        return nil, err
    end
    set_times(process, write, output, errors, ending)
    return process
end

package.preload["ngx.pipe"] = function()
    return { version = "0.1.32", spawn = spawn }
end
