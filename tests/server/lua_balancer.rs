//! `balancer_by_lua`: what a script says of the tries of a request, and what holds where it says nothing.

use weir_tests::Server;

use crate::lua::lua;

fn with(outer: &str, locations: &str) -> Option<Server> {
    let block = format!(
        "{outer}
        default_type text/plain;
        server {{ listen 127.0.0.1:%%PORT%%; server_name localhost;
            location /seen {{ content_by_lua_block {{
                ngx.req.read_body()
                ngx.print(ngx.var.http_x_try or \"-\", \" \", ngx.req.get_body_data() or \"-\")
            }} }}
            header_filter_by_lua_block {{ ngx.header[\"X-Told\"] = ngx.ctx.told }}
            {locations}
        }}"
    );
    Some(lua(&block)?.start())
}

#[test]
fn without_a_chosen_peer_the_group_has_its_turn() {
    let Some(server) = with(
        "upstream own { server 127.0.0.1:%%PORT%%; balancer_by_lua_block { ngx.ctx.told = 'asked' } }
        upstream oops { server 127.0.0.1:%%PORT%%; balancer_by_lua_block { error('oops') } }
        upstream sockets { server 127.0.0.1:%%PORT%%; balancer_by_lua_block { ngx.socket.tcp() } }
        upstream named { server 127.0.0.1:%%PORT%%; balancer_by_lua_block {
            ngx.ctx.told = select(2, require('ngx.balancer').set_current_peer('name.test', 80))
        } }",
        "location /own { proxy_pass http://own/seen; }
        location /oops { proxy_pass http://oops/seen; }
        location /sockets { proxy_pass http://sockets/seen; }
        location /named { proxy_pass http://named/seen; }",
    ) else {
        return;
    };
    let reply = server.get("/own").expect(200);
    assert_eq!(
        (reply.text(), reply.field("X-Told")),
        ("- -".into(), "asked")
    );
    let reply = server.get("/named").expect(200);
    assert_eq!(reply.field("X-Told"), "no host allowed");
    server.get("/oops").expect(500);
    server.get("/sockets").expect(500);
}

#[test]
fn a_script_says_how_many_tries_there_are_and_what_is_sent() {
    let code = "local balancer = require 'ngx.balancer'
        local n = (ngx.ctx.n or 0) + 1
        ngx.ctx.n = n
        local ok, err = balancer.set_more_tries(1)
        ngx.ctx.told = (ngx.ctx.told or '') .. n .. (err and '!' or '') .. ' '
        assert(balancer.set_current_peer('127.0.0.1', n < 4 and 1 or tonumber(ngx.var.server_port)))
        ngx.req.set_header('X-Try', n)
        assert(balancer.recreate_request())";
    let Some(server) = with(
        &format!("upstream chosen {{ server 0.0.0.1; balancer_by_lua_block {{ {code} }} }}"),
        "location /all { proxy_next_upstream_tries 9; proxy_pass http://chosen/seen; }
        location /some { proxy_next_upstream_tries 3; proxy_pass http://chosen/seen; }",
    ) else {
        return;
    };
    let reply = server.get("/all").expect(200);
    assert_eq!(reply.text(), "4 -");
    assert_eq!(reply.field("X-Told"), "1 2 3 4");
    let reply = server.get("/some").expect(502);
    assert_eq!(reply.field("X-Told"), "1 2 3!");
}

#[test]
fn the_status_of_a_chosen_server_is_a_reason_to_choose_again() {
    let code = "local balancer = require 'ngx.balancer'
        local n = (ngx.ctx.n or 0) + 1
        ngx.ctx.n = n
        ngx.ctx.told = (ngx.ctx.told or '') .. table.concat({balancer.get_last_failure()}, '=') .. ';'
        if n == 1 then balancer.set_more_tries(1) end
        assert(balancer.set_current_peer('127.0.0.1', ngx.var.server_port))
        ngx.req.set_header('X-Try', n)
        assert(balancer.recreate_request())";
    let Some(server) = with(
        &format!("upstream u {{ server 0.0.0.1:1; balancer_by_lua_block {{ {code} }} }}"),
        "location /picky { content_by_lua_block {
            if ngx.var.http_x_try == '1' then return ngx.exit(500) end
            ngx.print(ngx.var.http_x_try)
        } }
        location /u { proxy_next_upstream http_500; proxy_pass http://u/picky; }
        location /stays { proxy_next_upstream error; proxy_pass http://u/picky; }",
    ) else {
        return;
    };
    let reply = server.get("/u").expect(200);
    assert_eq!(
        (reply.text(), reply.field("X-Told")),
        ("2".into(), ";failed=500;")
    );
    server.get("/stays").expect(500);
}

#[test]
fn tries_of_chosen_servers_and_of_the_group_are_counted_together() {
    // Two servers are two tries: one that the script chose, and one of the group's own.
    let code = "ngx.ctx.told = (ngx.ctx.told or 0) + 1
        if ngx.ctx.told == 1 then
            assert(require('ngx.balancer').set_current_peer('127.0.0.1', 1))
        end";
    let Some(server) = with(
        &format!(
            "upstream u {{ server 127.0.0.1:1; server 127.0.0.1:2; balancer_by_lua_block {{ {code} }} }}"
        ),
        "location /u { proxy_pass http://u/; }",
    ) else {
        return;
    };
    let reply = server.get("/u").expect(502);
    assert_eq!(reply.field("X-Told"), "2");
}
