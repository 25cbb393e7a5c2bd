//! The sockets of scripts: pools with a bound, what waits for a connection, how long a read may take, and what is said of
//! arguments and of what failed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::thread;

use weir_tests::Server;

use crate::lua::lua;

/// A server with a script at `/`.
fn with(code: &str) -> Option<Server> {
    let block = format!(
        "default_type text/plain;
        lua_http10_buffering off;
        server {{ listen 127.0.0.1:%%PORT%%; server_name localhost;
            location /hello {{ return 200 hello; }}
            location / {{ content_by_lua_block {{ {code} }} }}
        }}"
    );
    Some(lua(&block)?.start())
}

/// What a script says that gets the port of a peer.
fn said(server: &Server, port: u16) -> String {
    server.get(&format!("/?port={port}")).expect(200).text()
}

#[test]
fn connections_over_the_size_of_a_pool_wait_for_their_turn() {
    let Some(server) = with(
        r#"local port, options = ngx.var.server_port, { pool_size = 1, backlog = 1 }
        local function open(time, other)
            local socket = ngx.socket.tcp()
            if time then socket:settimeout(time) end
            local ok, err = socket:connect("127.0.0.1", port, other or options)
            return ok and socket, err
        end
        local first = assert(open())
        local waiting = ngx.thread.spawn(function()
            local second = assert(open())
            ngx.say("second: ", second:getreusedtimes())
            second:close()
            return true
        end)
        ngx.say("third: ", select(2, open()))
        assert(first:setkeepalive())
        ngx.thread.wait(waiting)
        -- The pool has room again.
        local fourth = assert(open())
        ngx.say("fourth: ", fourth:getreusedtimes())
        ngx.say("in vain: ", select(2, open(30)))
        -- What failed or was killed leaves its place, and a connection that is closed lets the next one in.
        local killed = ngx.thread.spawn(open)
        ngx.thread.kill(killed)
        local last = ngx.thread.spawn(function() return assert(open()) end)
        fourth:close()
        local ok, socket = ngx.thread.wait(last)
        ngx.say("last: ", socket:getreusedtimes())
        socket:close()
        -- Without room of its own a name is another pool.
        local named = { pool = "a", pool_size = 1, backlog = 0 }
        local a = assert(open(nil, named))
        ngx.say("named: ", select(2, open(nil, named)))
        ngx.say("other: ", (open(nil, { pool = "b", pool_size = 1, backlog = 0 })) ~= nil)"#,
    ) else {
        return;
    };
    assert_eq!(
        server.get("/").expect(200).text(),
        "third: too many waiting connect operations\nsecond: 1\nfourth: 0\nin vain: timeout\nlast: 0\n\
         named: too many waiting connect operations\nother: true\n"
    );
}

#[test]
fn arguments_of_sockets_are_checked() {
    let Some(server) = with(
        r#"local port = ngx.var.server_port
        local function tell(f)
            local ok, err = pcall(f)
            ngx.say(ok and "fine" or (err:gsub("^[^ ]*: ", "")))
        end
        local socket = ngx.socket.tcp()
        ngx.say(socket:connect("127.0.0.1"))
        ngx.say(socket:connect("127.0.0.1", 65536))
        ngx.say(socket:receive())
        ngx.say(socket:setkeepalive())
        tell(function() socket:settimeout(-1) end)
        tell(function() socket:connect("127.0.0.1", port, { pool_size = 0 }) end)
        tell(function() socket:connect("127.0.0.1", port, { backlog = -1 }) end)
        tell(function() socket:connect("127.0.0.1", port, { pool = {} }) end)
        assert(socket:connect("127.0.0.1", port))
        tell(function() socket:receive("*x") end)
        tell(function() socket:receive("x") end)
        tell(function() socket:receiveany(0) end)
        tell(function() socket:send(print) end)
        ngx.say(socket:getreusedtimes())
        ngx.say(socket:close())
        ngx.say(socket:close())"#,
    ) else {
        return;
    };
    assert_eq!(
        server.get("/").expect(200).text(),
        "nilmissing the port number\nnilbad port number: 65536\nnilclosed\nnilclosed\nbad timeout value\n\
         bad argument #3 to 'connect' (bad \"pool_size\" option value: 0)\n\
         bad argument #3 to 'connect' (bad \"backlog\" option value: -1)\n\
         bad argument #3 to 'connect' (bad \"pool\" option type: table)\n\
         bad argument #1 to 'receive' (bad pattern argument)\n\
         bad argument #1 to 'receive' (bad pattern argument: x)\n\
         bad argument #1 to 'receiveany' (bad max argument)\n\
         bad argument #1 to 'send' (string, number, boolean, nil, or array table expected, got function)\n\
         0\n1\nnilclosed\n"
    );
}

#[test]
fn the_time_of_a_read_is_that_of_each_piece() {
    let Some(server) = with(
        r#"local socket = ngx.socket.tcp()
        socket:settimeout(2000)
        assert(socket:connect("127.0.0.1", ngx.var.server_port))
        if ngx.var.uri == "/slow" then
            for letter in ("slowly"):gmatch(".") do
                ngx.print(letter)
                ngx.flush(true)
                ngx.sleep(0.45)
            end
            return
        end
        assert(socket:send("GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
        local content = assert(socket:receive("*a")):match("\r\n\r\n(.*)")
        -- Without the sizes of the chunks.
        ngx.print((content:gsub("[^a-z]", "")))"#,
    ) else {
        return;
    };
    assert_eq!(server.get("/").expect(200).text(), "slowly");
}

#[test]
fn the_end_of_the_data_ends_each_way_of_reading() {
    let Some(server) = with(
        r#"local function open()
            local socket = ngx.socket.tcp()
            assert(socket:connect("127.0.0.1", ngx.var.arg_port))
            socket:settimeout(10000)
            return socket
        end
        local function show(...)
            local values = {}
            for at = 1, select('#', ...) do values[at] = tostring((select(at, ...))) end
            ngx.say(table.concat(values, ","))
        end
        local socket = open()
        show(socket:receive("*a"))
        -- The end is no error for this pattern, so it can be used again.
        show(socket:receive("*a"))
        show(socket:receive("*l"))
        show(socket:receive("*a"))
        socket = open()
        local read = socket:receiveuntil("--")
        -- What may have been the beginning of the delimiter is in no result.
        show(read())
        show(read())
        show(socket:receive("*a"))
        socket = open()
        read = socket:receiveuntil("--", { inclusive = false })
        show(read(3))
        show(read(3))
        show(read(3))"#,
    ) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let peer = thread::spawn(move || {
        for _ in 0..3 {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.write_all(b"abc-").expect("it is read");
        }
    });
    assert_eq!(
        said(&server, port),
        "abc-\n\nnil,closed,\nnil,closed\n\
         nil,closed,abc\nnil,closed\nnil,closed\n\
         abc\nnil,closed,\nnil,closed\n"
    );
    peer.join().expect("the peer");
}

/// Each read takes up the search for the delimiter where the last one left it.
#[test]
fn a_delimiter_is_found_in_data_that_comes_byte_by_byte() {
    let Some(server) = with(
        r#"local socket = ngx.socket.tcp()
        assert(socket:connect("127.0.0.1", ngx.var.arg_port))
        socket:settimeout(10000)
        local read = socket:receiveuntil("abcabd")
        local pieces = {}
        while true do
            local piece = read(4)
            if not piece then break end
            pieces[#pieces + 1] = piece
        end
        ngx.say(table.concat(pieces, ","), ",", socket:receive("*a"))"#,
    ) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        for byte in b"xyzabcabcabcabdrest" {
            stream.write_all(&[*byte]).expect("it is read");
            // Long enough for a read of its own in most runs; the result must not depend on it.
            thread::yield_now();
        }
    });
    assert_eq!(said(&server, port), "xyzabc,abc,rest\n");
    peer.join().expect("the peer");
}

#[test]
fn what_may_begin_a_mark_stays_for_the_next_read() {
    let Some(server) = with(
        r#"local socket = ngx.socket.tcp()
        assert(socket:connect("127.0.0.1", ngx.var.arg_port))
        socket:settimeout(100)
        local read = socket:receiveuntil("--end")
        ngx.say(table.concat({ tostring((read())), select(2, read()) }, ","))
        assert(socket:send("x"))
        socket:settimeout(10000)
        ngx.say(read())
        ngx.say(read(2), " ", read(2), " ", tostring((read(2))))
        local line, err, rest = socket:receive()
        ngx.say(tostring(line), " ", err, " ", rest)
        -- The peer has finished, and may still be spoken to.
        ngx.say(socket:receive())
        ngx.say(socket:send("after"))"#,
    ) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(b"one--e").expect("it is read");
        stream.read_exact(&mut [0]).expect("a byte");
        stream.write_all(b"nd").expect("it is read");
        stream.write_all(b"two--endrest").expect("it is read");
        stream.shutdown(Shutdown::Write).expect("a connection");
        let mut after = String::new();
        stream.read_to_string(&mut after).expect("text");
        after
    });
    assert_eq!(
        said(&server, port),
        "nil,timeout,\n\ntw o nil\nnil closed rest\nnilclosed\n5\n"
    );
    assert_eq!(peer.join().expect("no panic"), "after");
}
