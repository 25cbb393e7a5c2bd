//! `resty.chash`, `resty.roundrobin` and `lua_wake_timers`: what balancers in Lua, such as that of ingress-nginx, are
//! made of. The first two are built in; nginx needs a library for them, so that these run on Weir only.

use weir_tests::{http, skip_on_oracle, until};

use crate::lua::says;

const WHY: &str = "lua-resty-balancer is not installed";

#[test]
fn keys_stay_with_their_nodes() {
    if skip_on_oracle(WHY) {
        return;
    }
    says(
        "local ring = require('resty.chash'):new({ ['127.0.0.1:1985'] = 2, ['127.0.0.1:1986'] = 2, ['127.0.0.1:1987'] = 1 })
         local function spread()
             local count = {}
             for n = 1, 10000 do
                 local id = ring:find(n)
                 count[id] = (count[id] or 0) + 1
             end
             return count
         end
         local before, nodes = spread(), {}
         for n = 1, 10000 do nodes[n] = ring:find(n) end
         local share = before['127.0.0.1:1987'] / 10000
         ngx.say(ring.npoints, ' ', share > 0.15 and share < 0.25)
         ring:delete('127.0.0.1:1987')
         local moved = 0
         for n = 1, 10000 do
             if ring:find(n) ~= nodes[n] then
                 moved = moved + 1
                 assert(nodes[n] == '127.0.0.1:1987')
             end
         end
         ngx.say(moved == before['127.0.0.1:1987'], ' ', ring.npoints)
         ring:set('127.0.0.1:1987', 1)
         for n = 1, 10000 do assert(ring:find(n) == nodes[n]) end
         local id, place = ring:find('key')
         local seen = {}
         for _ = 1, ring.npoints do
             id, place = ring:next(place)
             seen[id] = true
         end
         local _, again = ring:find('key')
         ngx.say(place == again, ' ', require('table.nkeys')(seen))
         ring:reinit({})
         local ok, err = pcall(ring.incr, ring, 'a', 1e9)
         ngx.say(tostring(ring:find('key')), ' ', ok, ' ', err:match('no memory'))",
        "800 true\ntrue 640\ntrue 3\nnil false no memory\n",
    );
}

#[test]
fn a_key_leads_to_the_node_that_it_leads_to_behind_nginx() {
    if skip_on_oracle(WHY) {
        return;
    }
    // The digest was computed with lua-resty-balancer's own code on nginx.
    says(
        "local out = {}
         for _, nodes in ipairs {
             { ['127.0.0.1:1985'] = 1, ['127.0.0.1:1986'] = 1, ['10.1.2.3:80'] = 1 },
             { a = 2, b = 3, c = 1, d = 7 }, { ['[::1]:80'] = 1 },
         } do
             local ring = require('resty.chash'):new(nodes)
             for n = 1, 3000 do out[#out + 1] = ring:find('key' .. n) end
             ring:set('extra', 2)
             for n = 1, 3000 do out[#out + 1] = ring:find(n * 7) end
             local _, place = ring:find('x')
             for _ = 1, 50 do
                 local id
                 id, place = ring:next(place)
                 out[#out + 1] = id .. '@' .. place
             end
         end
         ngx.say(#out, ' ', ngx.md5(table.concat(out, '\\n')))",
        "18150 96ad8c7415be556106d5ed4c2c3e2287\n",
    );
}

#[test]
fn turns_are_taken_by_weight() {
    if skip_on_oracle(WHY) {
        return;
    }
    says(
        "local rr = require('resty.roundrobin'):new({ a = 5, b = 2, c = 1 })
         local function count(times)
             local seen = { a = 0, b = 0, c = 0, d = 0 }
             for _ = 1, times do local id = rr:find() seen[id] = seen[id] + 1 end
             return seen.a .. ' ' .. seen.b .. ' ' .. seen.c .. ' ' .. seen.d
         end
         ngx.say(count(80))
         rr:incr('d', 2) rr:decr('a', 3) rr:delete('b')
         ngx.say(count(50), ' ', rr.nodes.a)
         rr:reinit({ a = 1 })
         ngx.say(count(3))
         rr:reinit({})
         ngx.say(tostring(rr:find()))",
        "50 20 10 0\n20 0 10 20 2\n3 0 0 0\nnil\n",
    );
}

#[test]
fn a_change_wakes_repeated_timers_on_every_loop() {
    if skip_on_oracle("a directive of Weir") {
        return;
    }
    let conf = "lua_shared_dict told 1m; lua_shared_dict seen 1m; lua_wake_timers told;
        init_worker_by_lua_block {
            local id = ngx.worker.id()
            local function look()
                local value = ngx.shared.told:get('key')
                if value then ngx.shared.seen:set(value .. id, true) end
            end
            ngx.timer.every(3600, look)
            -- The first request may come before this loop has a timer.
            look()
        }
        server { listen 127.0.0.1:%%PORT%%;
            location /tell { content_by_lua_block { ngx.shared.told:set('key', ngx.var.arg_v) ngx.print('told') } }
            location /seen { content_by_lua_block {
                ngx.print(tostring(ngx.shared.seen:get(ngx.var.arg_v .. '0')), tostring(ngx.shared.seen:get(ngx.var.arg_v .. '1')))
            } } }";
    let server = http(conf).main("worker_processes 2;").start();
    for value in ["a", "b", "c"] {
        server.get(&format!("/tell?v={value}")).expect(200);
        let asked = format!("/seen?v={value}");
        let seen = until(|| (server.get(&asked).text() == "truetrue").then_some(()));
        assert!(seen.is_some(), "{value}");
    }
    let wrong = http("lua_wake_timers nothing; server { listen 127.0.0.1:%%PORT%%; }").test();
    assert!(
        wrong.code != 0 && wrong.stderr.contains("no \"lua_shared_dict\" defines"),
        "{}",
        wrong.stderr
    );
}
