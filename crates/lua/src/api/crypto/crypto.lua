-- The modules of lua-resty-string, on what the server has built in.
local core = ...

local preload, type, error = package.preload, type, error
local version = "0.17"

local names = { "md5", "sha1", "sha224", "sha256", "sha384", "sha512" }
for _, name in ipairs(names) do
    preload["resty." .. name] = function()
        return {
            _VERSION = version,
            new = function()
                return core.digest(name)
            end,
        }
    end
end

preload["resty.sha"] = function()
    return { _VERSION = version }
end

preload["resty.random"] = function()
    return {
        _VERSION = version,
        -- All of them are strong.
        bytes = function(length)
            return core.random_bytes(length)
        end,
    }
end

-- The modes, with the length of the vector that OpenSSL derives from a password for each.
local vectors = { ecb = 0, cbc = 16, cfb1 = 16, cfb8 = 16, cfb128 = 16, ofb = 16, ctr = 16, gcm = 12 }

preload["resty.aes"] = function()
    local aes = { _VERSION = version, hash = {} }
    for _, name in ipairs(names) do
        aes.hash[name] = name
    end

    function aes.cipher(size, mode)
        size, mode = size or 128, mode or "cbc"
        if size ~= 128 and size ~= 192 and size ~= 256 or not vectors[mode] then
            return nil
        end
        return { size = size, cipher = mode, method = mode }
    end

    -- The key, and the vector as it was given.
    local function given(key, hash, length)
        local vector = hash.iv
        if not vector then
            return nil, "iv is needed"
        end
        if #vector > length then
            return nil, "bad iv length"
        end
        if hash.method then
            key = hash.method(key)
        end
        if #key ~= length then
            return nil, "bad key length"
        end
        return key, vector
    end

    local function derived(key, salt, cipher, hash, rounds, length, vector_length)
        if salt and #salt ~= 8 then
            return nil, "salt must be 8 characters or nil"
        end
        local made, vector = core.bytes_to_key(hash, salt, key, rounds, length, vectors[cipher.cipher])
        -- What the hash function does not fill is zero.
        return made, (vector .. ("\0"):rep(length)):sub(1, vector_length)
    end

    function aes.new(_, key, salt, cipher, hash, rounds, vector_length, padding)
        cipher, hash = cipher or aes.cipher(), hash or "md5"
        local length = cipher.size / 8
        local made, vector
        if type(hash) == "table" then
            made, vector = given(key, hash, length)
        else
            made, vector = derived(key, salt, cipher, hash, rounds or 1, length, vector_length or length)
        end
        if not made then
            return nil, vector
        end
        return core.aes(cipher.cipher, made, vector, padding == nil or padding)
    end

    return aes
end
