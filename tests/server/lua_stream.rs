//! Lua in stream. Debian's nginx has no module for it, so that these run on Weir only.

use std::io::Write;
use std::net::UdpSocket;
use std::time::Duration;

use weir_tests::{Scripted, Server, Site, is_oracle, read_until, whole};

/// A site with this `stream` block; none on nginx.
fn stream(block: &str) -> Option<Site> {
    if is_oracle() {
        println!("skipped on nginx: Debian has no Lua for stream");
        return None;
    }
    Some(whole(&format!("events {{}}\nstream {{\n{block}\n}}\n")))
}

/// Everything that a connection says after `bytes` were sent and its side was closed.
fn said(server: &Server, index: usize, bytes: &str) -> String {
    let mut connection = server.connect_to(index);
    connection.send(bytes);
    connection.half_close();
    String::from_utf8_lossy(&connection.rest()).into_owned()
}

#[test]
fn a_script_talks_to_a_client() {
    let Some(site) = stream(
        r#"lua_shared_dict shared 1m;
        log_format line '$status $bytes_received $bytes_sent';
        init_by_lua_block { started = "yes" }
        init_worker_by_lua_block { ngx.shared.shared:set("worker", "up") }
        server {
            listen 127.0.0.1:%%PORT%%;
            access_log s.log line;
            set $mine "";
            content_by_lua_block {
                local socket = assert(ngx.req.socket(true))
                ngx.say(started, " ", ngx.shared.shared:get("worker"), " ", ngx.config.subsystem, " ", ngx.get_phase())
                ngx.flush(true)
                ngx.var.mine = "set"
                ngx.say(ngx.var.protocol, " ", ngx.var.mine, " ", ngx.var.nothing_such == nil)
                ngx.ctx.lines = 0
                while true do
                    local line, err = socket:receive()
                    if not line then ngx.say(err, " after ", ngx.ctx.lines) break end
                    ngx.ctx.lines = ngx.ctx.lines + 1
                    if line == "count" then
                        assert(socket:send({ "five: ", socket:receive(5), "\n" }))
                    elseif line == "until" then
                        ngx.say("mark: ", socket:receiveuntil("--")())
                    elseif line == "exit" then
                        ngx.exit(403)
                    else
                        ngx.say("line: ", line)
                        ngx.sleep(0.001)
                    end
                end
            }
            log_by_lua_block { ngx.log(ngx.WARN, "lines: ", ngx.ctx.lines, " status: ", ngx.var.status) }
        }"#,
    ) else {
        return;
    };
    let server = site.start();
    let head = "yes up stream content\nTCP set true\n";
    let sent = "one\ncount\n12345until\nab-c--two\r\n";
    let answer = format!("{head}line: one\nfive: 12345\nmark: ab-c\nline: two\nclosed after 4\n");
    assert_eq!(said(&server, 0, sent), answer);
    server.line("error.log", "lines: 4 status: 200");
    server.line("s.log", &format!("200 {} {}", sent.len(), answer.len()));
    assert_eq!(said(&server, 0, "exit\n"), head);
    server.line("error.log", "lines: 1 status: 403");
}

#[test]
fn a_script_looks_at_the_first_bytes_and_leaves_them() {
    let origin = Scripted::start(move |client, _| {
        let line = read_until(client, b"\n");
        let _ = client.write_all(b"origin got ");
        let _ = client.write_all(&line);
    });
    let Some(site) = stream(&format!(
        r#"server {{
            listen 127.0.0.1:%%PORT%%;
            preread_by_lua_block {{
                local socket = ngx.req.socket()
                local first = assert(socket:peek(3))
                if first == "bad" then return ngx.exit(ngx.ERROR) end
                assert(socket:peek(4) == first .. "!")
                ngx.sleep(0.001)
            }}
            proxy_pass 127.0.0.1:{0};
        }}
        server {{
            listen 127.0.0.1:%%PORT1%%;
            preread_by_lua_block {{
                -- What is received is gone, and the rest goes on.
                local socket = ngx.req.socket()
                ngx.log(ngx.WARN, "took ", socket:receive(4))
            }}
            proxy_pass 127.0.0.1:{0};
        }}"#,
        origin.port()
    )) else {
        return;
    };
    let server = site.start();
    let passed = |index, bytes: &str| {
        let mut connection = server.connect_to(index);
        connection.send(bytes);
        String::from_utf8_lossy(&connection.rest()).into_owned()
    };
    assert_eq!(passed(0, "abc!def\n"), "origin got abc!def\n");
    assert_eq!(passed(0, "bad!def\n"), "");
    assert_eq!(passed(1, "abc!def\n"), "origin got def\n");
    server.line("error.log", "took abc!");
}

#[test]
fn scripts_of_stream_use_sockets_threads_and_timers() {
    let origin = Scripted::start(move |client, _| {
        let line = read_until(client, b"\n");
        let _ = client.write_all(b"got ");
        let _ = client.write_all(&line);
    });
    let Some(site) = stream(&format!(
        r#"lua_shared_dict shared 1m;
        server {{
            listen 127.0.0.1:%%PORT%%;
            content_by_lua_block {{
                local function ask(text)
                    local socket = ngx.socket.tcp()
                    assert(socket:connect("127.0.0.1", {}))
                    assert(socket:send(text .. "\n"))
                    return socket:receive()
                end
                local a, b = ngx.thread.spawn(ask, "a"), ngx.thread.spawn(ask, "b")
                local ok, first = ngx.thread.wait(a)
                local ok, second = ngx.thread.wait(b)
                ngx.say(first, ", ", second)
                local client = ngx.req.socket()
                ngx.timer.at(0, function()
                    local ok, err = pcall(client.receive, client)
                    ngx.shared.shared:set("timer", tostring(ngx.var) and "ran")
                end)
                while not ngx.shared.shared:get("timer") do ngx.sleep(0.001) end
                ngx.say(ngx.shared.shared:get("timer"))
                ngx.say(ngx.md5("x"), " ", ngx.escape_uri("a b"), " ", ngx.re.match("abc", "b")[0])
                ngx.say(ngx.header, " ", ngx.location, " ", ngx.req.get_headers, " ", ngx.status)
            }}
        }}"#,
        origin.port()
    )) else {
        return;
    };
    assert_eq!(
        said(&site.start(), 0, ""),
        "got a, got b\nran\n9dd4e461268c8034f5c8564e155c67a6 a%20b b\nnil nil nil nil\n"
    );
}

#[test]
fn datagrams_are_answered_by_a_script() {
    let Some(site) = stream(
        r#"server {
            listen 127.0.0.1:%%PORT%% udp;
            content_by_lua_block {
                local socket = assert(ngx.req.socket())
                local datagram = assert(socket:receive())
                assert(socket:send("got " .. datagram))
                ngx.print(ngx.var.protocol)
            }
        }"#,
    ) else {
        return;
    };
    let server = site.start();
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a time");
    socket
        .send_to(b"datagram", ("127.0.0.1", server.port(0)))
        .expect("it is sent");
    for wanted in ["got datagram", "UDP"] {
        let mut buffer = [0; 100];
        let n = socket.recv(&mut buffer).expect("an answer");
        assert_eq!(&buffer[..n], wanted.as_bytes());
    }
}

#[test]
fn an_endless_script_of_stream_holds_nobody_up() {
    let Some(site) = stream(
        r#"lua_run_limit 50ms;
        server { listen 127.0.0.1:%%PORT%%; content_by_lua_block { ngx.say("begins") ngx.flush(true) while true do end } }
        server { listen 127.0.0.1:%%PORT1%%; content_by_lua_block { ngx.print("answer") } }"#,
    ) else {
        return;
    };
    let server = site.tolerate("lua_run_limit").start();
    let mut endless = server.connect_to(0);
    assert_eq!(endless.at_least(7), b"begins\n");
    for _ in 0..5 {
        assert_eq!(said(&server, 1, ""), "answer");
    }
    assert_eq!(endless.rest(), b"");
    server.line("error.log", "the script ran for longer than lua_run_limit");
}

#[test]
fn what_a_script_of_stream_does_wrong_is_said_with_its_line() {
    let Some(site) = stream(
        "server { listen 127.0.0.1:%%PORT%%;\ncontent_by_lua_block {\n ngx.say('before')\n local x = nil\n x.y = 1\n } }
        server { listen 127.0.0.1:%%PORT1%%; log_by_lua_block { ngx.sleep(1) } return text; }",
    ) else {
        return;
    };
    let server = site
        .tolerate("runtime error")
        .tolerate("API disabled")
        .start();
    assert_eq!(said(&server, 0, ""), "before\n");
    server.line("error.log", "attempt to index local 'x' (a nil value)");
    assert_eq!(said(&server, 1, ""), "text");
    server.line("error.log", "API disabled in the context of log_by_lua*");
    let broken = stream("server { listen 127.0.0.1:%%PORT%%; content_by_lua_block { if } }");
    let finished = broken.expect("not on nginx").test();
    assert_eq!(finished.code, 0);
    assert!(
        finished
            .stderr
            .contains("[warn] failed to load the Lua code of \"content_by_lua_block\""),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_script_chooses_the_server_of_each_try_of_a_session() {
    let origin = Scripted::start(move |client, _| {
        let line = read_until(client, b"\n");
        let _ = client.write_all(&line);
    });
    let Some(site) = stream(&format!(
        r#"upstream chosen {{
            server 0.0.0.1:1;
            balancer_by_lua_block {{
                local balancer = require "ngx.balancer"
                local failed = balancer.get_last_failure()
                if ngx.var.server_port == "%%PORT1%%" then return ngx.exit(503) end
                if failed then
                    assert(balancer.set_current_peer("127.0.0.1", {}))
                else
                    balancer.set_more_tries(1)
                    assert(balancer.set_current_peer("127.0.0.1", 1))
                end
            }}
        }}
        log_format line '$status';
        server {{ listen 127.0.0.1:%%PORT%%; proxy_pass chosen; }}
        server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass chosen; access_log refused.log line; }}"#,
        origin.port()
    )) else {
        return;
    };
    let server = site.tolerate("connect() failed").start();
    let mut connection = server.connect();
    connection.send("a line\n");
    assert_eq!(connection.rest(), b"a line\n");
    assert_eq!(server.connect_to(1).rest(), b"");
    server.line("refused.log", "503");
}

#[test]
fn a_variable_can_be_defined_for_scripts() {
    let Some(site) = stream(
        "lua_add_variable $told; lua_add_variable $protocol; lua_add_variable $TOLD;
        log_format line 'told=$told';
        server {
            listen 127.0.0.1:%%PORT%%;
            access_log s.log line;
            preread_by_lua_block {
                local before = ngx.var.told
                ngx.var.told = tostring(before) .. ' ' .. ngx.var.protocol
            }
            return $told;
        }
        server { listen 127.0.0.1:%%PORT1%%; access_log s.log line; return x; }",
    ) else {
        return;
    };
    let server = site.start();
    assert_eq!(said(&server, 0, ""), "nil TCP");
    server.line("s.log", "told=nil TCP");
    assert_eq!(said(&server, 1, ""), "x");
    server.line("s.log", "told=-");
}
