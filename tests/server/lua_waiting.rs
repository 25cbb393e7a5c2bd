//! What scripts wait for, in its order: semaphores and timers.

use weir_tests::{Server, skip_on_oracle};

use crate::lua::lua;

fn with(outer: &str, locations: &str) -> Option<Server> {
    let block = format!(
        "{outer} lua_shared_dict shared 1m; default_type text/plain;
        server {{ listen 127.0.0.1:%%PORT%%; server_name localhost; {locations} }}"
    );
    Some(lua(&block)?.start())
}

#[test]
fn nobody_gets_ahead_of_those_who_wait_for_a_semaphore() {
    let Some(server) = with(
        "",
        r#"location / { content_by_lua_block {
            local semaphore = require("ngx.semaphore").new(1)
            ngx.say(semaphore:wait(0), " ", semaphore:count())
            local thread = ngx.thread.spawn(function() ngx.say("first ", semaphore:wait(10)) end)
            ngx.say(select(2, semaphore:wait(0)), " ", semaphore:count())
            semaphore:post(2)
            ngx.say(select(2, semaphore:wait(0)), " ", semaphore:count())
            ngx.thread.wait(thread)
            ngx.say(semaphore:wait(0), " ", semaphore:count())
            -- What was given to one that is gone is the next one's.
            local one = ngx.thread.spawn(function() semaphore:wait(10) end)
            local two = ngx.thread.spawn(function() ngx.say("second ", semaphore:wait(10)) end)
            semaphore:post()
            ngx.thread.kill(one)
            ngx.thread.wait(two)
            ngx.say(semaphore:count())
        } }"#,
    ) else {
        return;
    };
    assert_eq!(
        server.get("/").expect(200).text(),
        "true 0\ntimeout -1\ntimeout 1\nfirst truenil\ntrue 0\nsecond truenil\n0\n"
    );
}

#[test]
fn a_timer_comes_again_while_its_last_turn_is_at_work() {
    let Some(server) = with(
        "",
        r#"location / { content_by_lua_block {
            local shared = ngx.shared.shared
            assert(ngx.timer.every(0.01, function()
                shared:incr("begun", 1, 0)
                while not shared:get("over") do ngx.sleep(0.01) end
            end))
            for _ = 1, 1000 do
                if (shared:get("begun") or 0) >= 3 then break end
                ngx.sleep(0.01)
            end
            ngx.print(shared:get("begun") >= 3)
            shared:set("over", true)
        } }"#,
    ) else {
        return;
    };
    assert_eq!(server.get("/").expect(200).text(), "true");
}

#[test]
fn a_group_whose_servers_are_chosen_needs_none() {
    if skip_on_oracle("Debian's module is older") {
        return;
    }
    let Some(server) = with(
        "upstream chosen { balancer_by_lua_block {
            assert(require('ngx.balancer').set_current_peer('127.0.0.1', tonumber(ngx.var.server_port)))
        } }
        upstream nobody { balancer_by_lua_block { } }",
        "location /hello { return 200 hello; }
        location /chosen { proxy_pass http://chosen/hello; }
        location /nobody { proxy_pass http://nobody/hello; }",
    ) else {
        return;
    };
    assert_eq!(server.get("/chosen").expect(200).text(), "hello");
    server.get("/nobody").expect(500);
}
