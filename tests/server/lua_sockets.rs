//! `ngx.req.socket`: the client's side of a request as a socket of the script, and what a script is told of a client that
//! leaves.

use weir_tests::{Server, until};

use crate::lua::lua;

fn with(locations: &str) -> Option<Server> {
    let block = format!(
        "lua_shared_dict shared 1m; default_type text/plain;
        server {{ listen 127.0.0.1:%%PORT%%; server_name localhost;
            {locations}
        }}"
    );
    Some(lua(&block)?.start())
}

#[test]
fn a_script_reads_the_content_of_a_request() {
    let Some(server) = with(
        r#"location /lines { content_by_lua_block {
            local socket, err = ngx.req.socket()
            if not socket then return ngx.say(err) end
            socket:settimeout(10000)
            local lines = {}
            while true do
                local line, err, rest = socket:receive()
                if not line then lines[#lines + 1] = err .. ":" .. rest break end
                lines[#lines + 1] = line
            end
            ngx.say(table.concat(lines, ","))
        } }
        location /some { content_by_lua_block {
            local socket = ngx.req.socket()
            ngx.say(socket:receive(3))
        } }"#,
    ) else {
        return;
    };
    let body = "one\ntwo\nthr";
    let length = format!("Content-Length: {}", body.len());
    let mut connection = server.connect();
    for (target, text) in [("/lines", "one,two,closed:thr\n"), ("/some", "one\n")] {
        connection.request("POST", target, &[&length]);
        connection.send(body);
        assert_eq!(connection.reply().expect(200).text(), text, "{target}");
    }
    assert_eq!(server.get("/lines").expect(200).text(), "no body\n");
}

#[test]
fn a_script_learns_that_its_client_has_left() {
    let Some(server) = with(
        r#"lua_check_client_abort on;
        location / { content_by_lua_block {
            local key = ngx.var.uri
            local ok = assert(ngx.on_abort(function()
                ngx.shared.shared:set(key, "left")
                ngx.exit(499)
            end))
            local again, err = ngx.on_abort(function() end)
            ngx.shared.shared:set("again", tostring(again) .. " " .. err)
            if key == "/late" then ngx.say("begins") ngx.flush(true) end
            ngx.shared.shared:set(key, "waits")
            while true do ngx.sleep(0.01) end
        } }
        location = /off { lua_check_client_abort off; content_by_lua_block {
            ngx.print(ngx.on_abort(function() end))
        } }
        location /state/ { content_by_lua_block {
            ngx.print(ngx.shared.shared:get(ngx.var.uri:sub(7)))
        } }"#,
    ) else {
        return;
    };
    let state = |path: &str| server.get(&format!("/state{path}")).expect(200).text();
    for path in ["/early", "/late"] {
        let mut connection = server.connect();
        connection.request("GET", path, &[]);
        until(|| (state(path) == "waits").then_some(())).expect("it waits");
        drop(connection);
        until(|| (state(path) == "left").then_some(())).expect("it is told");
    }
    assert_eq!(
        server.get("/off").expect(200).text(),
        "nillua_check_client_abort is off"
    );
}

#[test]
fn content_in_chunks_is_read_too() {
    // Debian's module has no socket for content in chunks.
    if weir_tests::skip_on_oracle("chunked request bodies not supported yet") {
        return;
    }
    let Some(server) = with(
        r#"location / { content_by_lua_block {
            local socket = ngx.req.socket()
            ngx.print(socket:receive(5), "|", socket:receiveany(100), "|", (select(2, socket:receive(1))))
        } }"#,
    ) else {
        return;
    };
    let mut connection = server.connect();
    for _ in 0..3 {
        connection.request("POST", "/", &["Transfer-Encoding: chunked"]);
        connection.send("3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
        assert_eq!(connection.reply().expect(200).text(), "abcde|fg|closed");
    }
}

#[test]
fn a_script_takes_over_the_connection() {
    let Some(server) = with(
        r#"location /raw { content_by_lua_block {
            local socket = assert(ngx.req.socket(true))
            socket:settimeout(10000)
            assert(socket:send("HTTP/1.1 200 Mine\r\nContent-Length: 5\r\n\r\nmine\n"))
            local line = socket:receive()
            assert(socket:send("echo " .. tostring(line) .. "\n"))
            local ok, err = ngx.say("nothing")
            ngx.log(ngx.WARN, "said: ", ok, " ", err)
        } }
        location /upgrade { content_by_lua_block {
            ngx.header.upgrade = "lines"
            ngx.header.content_type = nil
            ngx.status = 101
            assert(ngx.send_headers())
            assert(ngx.flush(true))
            local socket = assert(ngx.req.socket(true))
            socket:settimeout(10000)
            while true do
                local line = socket:receive()
                if not line then break end
                assert(socket:send("echo " .. line .. "\n"))
            end
        } }"#,
    ) else {
        return;
    };
    let mut connection = server.connect();
    connection.request("GET", "/raw", &[]);
    connection.send("a line\n");
    let whole = String::from_utf8_lossy(&connection.rest()).into_owned();
    assert_eq!(
        whole,
        "HTTP/1.1 200 Mine\r\nContent-Length: 5\r\n\r\nmine\necho a line\n"
    );
    server.line("error.log", "said: nil raw request socket acquired");

    let mut connection = server.connect();
    connection.request(
        "GET",
        "/upgrade",
        &["Connection: upgrade", "Upgrade: lines"],
    );
    connection.send("one\n");
    let head = connection.at_least(1);
    let mut all = head;
    connection.send("two\n");
    connection.half_close();
    all.extend(connection.rest());
    let text = String::from_utf8_lossy(&all).into_owned();
    let (head, rest) = text.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.to_lowercase().contains("\r\nupgrade: lines"), "{head}");
    assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
    assert_eq!(rest, "echo one\necho two\n");
}

#[test]
fn datagrams_are_sent_and_received() {
    let peer = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = peer.local_addr().expect("it is bound").port();
    let echo = std::thread::spawn(move || {
        let mut buffer = [0; 100];
        let (n, from) = peer.recv_from(&mut buffer).expect("a datagram");
        peer.send_to(&buffer[..n], from).expect("it is sent");
    });
    // Debian's module can not bind.
    let bind = match weir_tests::is_oracle() {
        true => "",
        false => "assert(udp:bind('127.0.0.1'))",
    };
    let Some(server) = with(&format!(
        r#"location / {{ content_by_lua_block {{
            local udp = ngx.socket.udp()
            {bind}
            assert(udp:setpeername("127.0.0.1", {port}))
            udp:settimeout(10000)
            assert(udp:send({{ "a ", "datagram" }}))
            ngx.print(udp:receive())
            assert(udp:close())
        }} }}"#
    )) else {
        return;
    };
    assert_eq!(server.get("/").expect(200).text(), "a datagram");
    echo.join().expect("it echoes");
}

#[test]
fn a_socket_that_a_script_forgets_is_closed_with_its_request() {
    let Some(server) = lua(
        "lua_socket_log_errors off; client_header_timeout 1h;
        server { listen 127.0.0.1:%%PORT%%;
            location /forget { content_by_lua_block {
                kept = kept or {}
                local s = ngx.socket.tcp() kept[#kept + 1] = s
                ngx.print(s:connect('127.0.0.1', ngx.var.server_port)) } }
            location /timer { content_by_lua_block {
                local port = ngx.var.server_port
                ngx.timer.at(0, function() kept = kept or {} local s = ngx.socket.tcp() kept[#kept + 1] = s s:connect('127.0.0.1', port) end)
            } }
            location /status { stub_status; }
        }",
    )
    .map(|site| site.start()) else {
        return;
    };
    for target in ["/forget", "/forget", "/timer"] {
        server.get(target).expect(200);
    }
    // Those who ask are one.
    let alone = || {
        let text = server.get("/status").expect(200).text();
        text.starts_with("Active connections: 1 ").then_some(())
    };
    assert!(until(alone).is_some());
}

#[test]
fn content_that_has_come_is_there_when_the_response_has_begun() {
    let Some(server) = with(
        r#"location / { content_by_lua_block {
            ngx.send_headers()
            ngx.flush(true)
            local socket = ngx.req.socket()
            ngx.say(socket:receive(3), " ", socket:receive(4), " ", (select(2, socket:receive())))
        } }"#,
    ) else {
        return;
    };
    let mut connection = server.connect();
    connection.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\nonetwo!");
    assert_eq!(connection.reply().expect(200).text(), "one two! closed\n");
}

#[test]
fn the_whole_connection_comes_with_content_that_nobody_has_read() {
    let Some(server) = with(
        r#"location / { content_by_lua_block {
            local socket = assert(ngx.req.socket(true))
            local again, err = ngx.req.socket(true)
            local text = socket:receive("*l") .. socket:receive(3)
            local body = text .. " " .. err
            socket:send("HTTP/1.1 200 OK\r\nContent-Length: " .. #body .. "\r\n\r\n" .. body)
        } }"#,
    ) else {
        return;
    };
    for framing in ["Content-Length: 8", "Transfer-Encoding: chunked"] {
        let mut connection = server.connect();
        connection.send(format!(
            "POST / HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n3\r\none\r\n"
        ));
        let reply = connection.reply().expect(200);
        assert_eq!(reply.text(), "3one duplicate call", "{framing}");
        connection.assert_closed();
    }
}
