//! What scripts wait for, in its order: semaphores and timers.

use weir_tests::{Connection, Server, skip_on_oracle};

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

#[test]
fn light_threads_go_on_while_one_waits_for_the_request_body() {
    let Some(server) = with(
        "",
        r#"location = /exit { content_by_lua_block {
            ngx.say("begun")
            ngx.thread.spawn(function()
                ngx.sleep(0.01)
                ngx.say("over")
                ngx.exit(200)
            end)
            ngx.req.read_body()
            ngx.say("never")
        } }
        location = /says { content_by_lua_block {
            ngx.thread.spawn(function()
                for n = 1, 3 do
                    ngx.say("thread ", n)
                    ngx.flush(true)
                    ngx.sleep(0.001)
                end
                ngx.say("done")
                ngx.flush(true)
            end)
            ngx.req.read_body()
            ngx.say("body ", ngx.req.get_body_data())
        } }"#,
    ) else {
        return;
    };
    let mut connection = server.connect();
    connection.request("POST", "/exit", &["Content-Length: 10"]);
    assert_eq!(connection.reply().expect(200).text(), "begun\nover\n");

    let mut connection = server.connect();
    connection.request("POST", "/says", &["Content-Length: 5"]);
    assert!(said_until(&mut connection, "done").contains("thread 3"));
    connection.send("hello");
    assert!(said_until(&mut connection, "\r\n0\r\n").contains("body hello"));
}

/// What a connection says up to this text, or up to its end.
fn said_until(connection: &mut Connection, text: &str) -> String {
    let mut said = String::new();
    while !said.contains(text) {
        let more = connection.at_least(1);
        if more.is_empty() {
            break;
        }
        said.push_str(&String::from_utf8_lossy(&more));
    }
    said
}

#[test]
fn a_body_beyond_its_buffer_is_in_a_file_that_scripts_can_open() {
    let Some(server) = with(
        "client_body_buffer_size 1k;",
        r#"location = /read { content_by_lua_block {
            ngx.req.read_body()
            local file = assert(io.open(ngx.req.get_body_file()))
            ngx.say(tostring(ngx.req.get_body_data()), " ", #file:read("*a"))
        } }
        location = /built { content_by_lua_block {
            ngx.req.read_body()
            ngx.req.init_body(64)
            for n = 1, 1000 do ngx.req.append_body("0123456789") end
            ngx.req.finish_body()
            local file = assert(io.open(ngx.req.get_body_file()))
            local text = file:read("*a")
            ngx.say(tostring(ngx.req.get_body_data()), " ", ngx.var.http_content_length, " ", #text, " ",
                text == ("0123456789"):rep(1000))
        } }
        location = /small { content_by_lua_block {
            ngx.req.read_body()
            ngx.req.init_body()
            for n = 1, 100 do ngx.req.append_body("0123456789") end
            ngx.req.finish_body()
            ngx.say(#ngx.req.get_body_data(), " ", tostring(ngx.req.get_body_file()))
        } }
        location = /passed { rewrite_by_lua_block {
            ngx.req.read_body()
            ngx.req.init_body(100)
            for n = 1, 300 do ngx.req.append_body(("%09d\n"):format(n)) end
            ngx.req.finish_body()
        } proxy_pass http://127.0.0.1:%%PORT%%/sum; }
        location = /sum { client_body_buffer_size 64k; content_by_lua_block {
            ngx.req.read_body()
            local sum = 0
            for n in ngx.req.get_body_data():gmatch("%d+") do sum = sum + n end
            ngx.say(sum)
        } }"#,
    ) else {
        return;
    };
    let post = |target: &str| {
        let mut connection = server.connect();
        connection.request("POST", target, &["Content-Length: 5000"]);
        connection.send("x".repeat(5000));
        connection.reply().expect(200).text()
    };
    assert_eq!(post("/read"), "nil 5000\n");
    assert_eq!(post("/built"), "nil 10000 10000 true\n");
    assert_eq!(post("/small"), "1000 nil\n");
    assert_eq!(post("/passed"), "45150\n");
}

#[test]
fn content_that_a_script_stops_reading_is_complete_for_the_next_reader() {
    if skip_on_oracle("nginx passes on what has been read so far") {
        return;
    }
    let Some(server) = with(
        "client_body_buffer_size 16k;",
        r#"access_by_lua_block {
            local turns = tonumber(ngx.var.arg_turns)
            if turns then
                ngx.thread.spawn(function() ngx.req.read_body() end)
                for _ = 1, turns do ngx.sleep(0) end
                ngx.exit(ngx.OK)
            end
        }
        location = /buffered { proxy_pass http://127.0.0.1:%%PORT%%/sum; }
        location = /streamed { proxy_request_buffering off; proxy_pass http://127.0.0.1:%%PORT%%/sum; }
        location = /sum { client_body_buffer_size 1m; content_by_lua_block {
            ngx.req.read_body()
            local body = ngx.req.get_body_data()
            ngx.print(#body, " ", ngx.md5(body))
        } }"#,
    ) else {
        return;
    };
    let content: String = (0..40_000).map(|n| format!("{n:07}\n")).collect();
    let sum = |target: &str| {
        let mut connection = server.connect();
        let length = format!("Content-Length: {}", content.len());
        connection.request("POST", target, &[&length]);
        // In pieces, so that the file is written to more than once.
        for piece in content.as_bytes().chunks(24 * 1024) {
            connection.send(piece);
        }
        connection.reply().expect(200).text()
    };
    let whole = sum("/sum");
    assert!(whole.starts_with("320000 "));
    // The script ends at different moments of the reading, some of them while the file is being written.
    for turns in 0..60 {
        for target in ["buffered", "streamed"] {
            assert_eq!(
                sum(&format!("/{target}?turns={turns}")),
                whole,
                "{turns} {target}"
            );
        }
    }
}
