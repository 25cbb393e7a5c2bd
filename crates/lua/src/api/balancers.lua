-- `resty.chash` and `resty.roundrobin` of lua-resty-balancer, whose first is in C there: nodes by name with weights.
local core = ...

local pairs, tonumber, tostring, setmetatable = pairs, tonumber, tostring, setmetatable
local random, preload = math.random, package.preload
local hash_ring = core.hash_ring

-- What both have: a change of a node's weight, after which `arrange` prepares the choice.
local function balancer(arrange)
    local class = {}
    local meta = { __index = class }

    function class.reinit(self, nodes)
        local own = {}
        for id, weight in pairs(nodes) do
            own[id] = tonumber(weight)
        end
        self.nodes = own
        arrange(self)
    end

    function class.new(_, nodes)
        local self = setmetatable({}, meta)
        class.reinit(self, nodes)
        return self
    end

    function class.set(self, id, weight)
        weight = tonumber(weight) or 0
        if (self.nodes[id] or 0) ~= weight then
            self.nodes[id] = weight > 0 and weight or nil
            arrange(self)
        end
        return true
    end

    function class.delete(self, id)
        class.set(self, id, 0)
    end

    function class.incr(self, id, weight)
        class.set(self, id, (self.nodes[id] or 0) + (tonumber(weight) or 1))
    end

    function class.decr(self, id, weight)
        class.set(self, id, (self.nodes[id] or 0) - (tonumber(weight) or 1))
    end

    return class
end

preload["resty.chash"] = function()
    local chash = balancer(function(self)
        local ids, names, weights, n = {}, {}, {}, 0
        for id, weight in pairs(self.nodes) do
            n = n + 1
            ids[n], names[n], weights[n] = id, tostring(id), weight
        end
        self.ids, self.ring = ids, hash_ring(names, weights)
        self.npoints = self.ring:length()
    end)

    -- The node of a key, and the place of its point for `next`.
    function chash.find(self, key)
        local node, place = self.ring:find(key)
        return self.ids[node], place
    end

    function chash.next(self, place)
        local node
        node, place = self.ring:at(place + 1)
        return self.ids[node], place
    end

    return chash
end

preload["resty.roundrobin"] = function()
    local function divisor(a, b)
        while b ~= 0 do
            a, b = b, a % b
        end
        return a
    end

    -- In each round a level goes down from the highest weight, by steps of what all weights are multiples of; the nodes
    -- whose weights reach the level take their turns. The first one is random, so that loops do not move in step.
    local roundrobin = balancer(function(self)
        local ids, weights, n, step, highest = {}, {}, 0, 0, 0
        for id, weight in pairs(self.nodes) do
            n = n + 1
            ids[n], weights[n] = id, weight
            step = divisor(weight, step)
            highest = weight > highest and weight or highest
        end
        self.ids, self.weights, self.count = ids, weights, n
        self.step, self.highest, self.level = step, highest, highest
        self.last = n > 0 and random(n) or 0
    end)

    function roundrobin.find(self)
        local ids, weights, count, last, level = self.ids, self.weights, self.count, self.last, self.level
        if count <= 1 or self.highest <= 0 then
            return ids[1]
        end
        repeat
            last = last + 1
            if last > count then
                last, level = 1, level - self.step
                if level <= 0 then
                    level = self.highest
                end
            end
        until weights[last] >= level
        self.last, self.level = last, level
        return ids[last]
    end

    roundrobin.next = roundrobin.find
    return roundrobin
end
