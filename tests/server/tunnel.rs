//! `tunnel_pass`: who gets a tunnel, where it goes, and how it ends.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use weir_tests::{Connection, Scripted, Server, http, read_until, send, skip_on_oracle};

/// nginx has the directive since 1.31; most machines have an older one.
fn is_unknown() -> bool {
    skip_on_oracle("most nginx do not have tunnel_pass")
}

/// A server with these directives.
fn proxy(directives: &str) -> Server {
    http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; {directives} }}"
    ))
    .start()
}

/// Says hello, gives back what it is sent, and says bye when that has ended.
fn echo() -> Scripted {
    Scripted::start(|stream, _| {
        send(stream, "hello ");
        let mut copy: TcpStream = stream.try_clone().expect("a descriptor can be copied");
        let _ = std::io::copy(&mut copy, stream);
        send(stream, " bye");
    })
}

/// Asks for a tunnel, and reads up to these bytes.
fn connect(server: &Server, target: &str, more: &str, until: &str) -> (Connection, String) {
    let mut connection = server.connect();
    connection.send(format!(
        "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n{more}"
    ));
    let mut received = String::new();
    while !received.ends_with(until) {
        received += &String::from_utf8_lossy(&connection.at_least(1));
    }
    (connection, received)
}

/// The status of the answer to CONNECT.
fn refusal(server: &Server, target: &str, version: &str, lines: &str) -> u16 {
    server
        .raw(format!(
            "CONNECT {target} HTTP/{version}\r\nHost: {target}\r\n{lines}\r\n"
        ))
        .status
}

#[test]
fn bytes_go_both_ways_until_both_sides_have_ended() {
    if is_unknown() {
        return;
    }
    let (peer, server) = (echo(), proxy("tunnel_pass;"));
    let (mut connection, head) = connect(
        &server,
        &format!("127.0.0.1:{}", peer.port()),
        "early",
        "hello early",
    );
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        !head.contains("Transfer-Encoding") && !head.contains("Content-Length"),
        "{head}"
    );
    connection.send(vec![b'x'; 500_000]);
    assert_eq!(connection.at_least(500_000).len(), 500_000);
    connection.send("last");
    connection.half_close();
    assert_eq!(connection.rest(), b"last bye");
    let line = server.line("access.log", "CONNECT");
    assert!(line.contains(" 200 "), "{line}");
}

#[test]
fn only_servers_that_have_the_directive_take_connect() {
    if is_unknown() {
        return;
    }
    let target = format!("127.0.0.1:{}", echo().port());
    assert_eq!(refusal(&proxy("location / { }"), &target, "1.1", ""), 405);
    let server = proxy("location / { tunnel_pass; }");
    assert_eq!(refusal(&server, &target, "1.0", ""), 405);
    assert_eq!(
        refusal(&server, &target, "1.1", "Content-Length: 5\r\n"),
        400
    );
    assert_eq!(
        server.get("/").status,
        405,
        "the location has nothing but tunnels"
    );
    for target in [
        "127.0.0.1",
        "127.0.0.1:",
        ":80",
        "127.0.0.1:65536",
        "http://127.0.0.1:80",
        "a@127.0.0.1:80",
    ] {
        assert_eq!(refusal(&server, target, "1.1", ""), 400, "{target}");
    }
}

#[test]
fn names_and_passwords_are_those_of_a_proxy() {
    if is_unknown() {
        return;
    }
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; auth_basic proxy; auth_basic_user_file %%DIR%%/users; tunnel_pass; }",
    )
    .file("users", "me:{PLAIN}word\n")
    .start();
    let target = format!("127.0.0.1:{}", echo().port());
    let reply = server.raw(format!(
        "CONNECT {target} HTTP/1.1\r\nHost: a\r\nAuthorization: Basic bWU6d29yZA==\r\n\r\n"
    ));
    assert_eq!(
        (reply.status, reply.field("Proxy-Authenticate")),
        (407, "Basic realm=\"proxy\"")
    );
    assert!(!reply.has("WWW-Authenticate"));
    let peer = echo();
    let mut connection = server.connect();
    let port = peer.port();
    connection.send(format!(
        "CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: a\r\nProxy-Authorization: Basic bWU6d29yZA==\r\n\r\n"
    ));
    connection.half_close();
    let all = String::from_utf8_lossy(&connection.rest()).into_owned();
    assert!(
        all.starts_with("HTTP/1.1 200 ") && all.ends_with("hello  bye"),
        "{all}"
    );
}

#[test]
fn the_next_server_is_tried_and_the_last_error_is_told() {
    if is_unknown() {
        return;
    }
    let peer = echo();
    let dead = Scripted::start(|_, _| {}).port();
    let conf = |more: &str| {
        format!(
            "upstream two {{ server 127.0.0.1:{dead}; server 127.0.0.1:{} backup; }}
            server {{ listen 127.0.0.1:%%PORT%%; tunnel_pass two; {more} }}",
            peer.port()
        )
    };
    let server = http(&conf("")).start();
    let (connection, head) = connect(&server, "any:1", "", "hello ");
    drop(connection);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(
        refusal(
            &http(&conf("tunnel_next_upstream off;")).start(),
            "any:1",
            "1.1",
            ""
        ),
        502
    );
}

#[test]
fn silence_ends_a_tunnel() {
    if is_unknown() {
        return;
    }
    let peer = Scripted::start(|stream, _| drop(read_until(stream, b"never")));
    let server = proxy("tunnel_pass; tunnel_read_timeout 200ms;");
    let begin = Instant::now();
    let (mut connection, _) = connect(
        &server,
        &format!("127.0.0.1:{}", peer.port()),
        "x",
        "\r\n\r\n",
    );
    connection.rest();
    assert!(
        begin.elapsed() >= Duration::from_millis(190),
        "{:?}",
        begin.elapsed()
    );
    server.line(
        "error.log",
        "upstream timed out (110: Connection timed out) while proxying upgraded connection",
    );
}
