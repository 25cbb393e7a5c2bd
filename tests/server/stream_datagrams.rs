//! Datagrams of `stream`: one that nothing has read is not served again, whichever way its session ended.

use std::net::UdpSocket;
use std::time::Duration;

use weir_tests::{PATIENCE, Server, Site, is_oracle, run, skip_on_oracle, whole};

/// nginx may be built without stream, or with it as a shared object that is not there.
fn is_missing() -> bool {
    let built_in = || {
        run(&["-V"])
            .stderr
            .split_whitespace()
            .any(|word| word == "--with-stream")
    };
    is_oracle() && !built_in() && skip_on_oracle("it is built without stream")
}

/// A site with this in its `stream` block. Sessions are logged in `s.log`, and a server at `%%PORT9%%` shows that the
/// loop has had its turns.
fn site(block: &str) -> Site {
    whole(&format!(
        "events {{ }}\nstream {{\n log_format line '$status $protocol $bytes_received $bytes_sent';\n \
         access_log s.log line;\n server {{ listen 127.0.0.1:%%PORT9%%; return turn; access_log off; }}\n{block}\n}}\n"
    ))
}

fn client(server: &Server) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("there is a free port");
    socket
        .connect(("127.0.0.1", server.port(0)))
        .expect("it is local");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("a time is valid");
    socket
}

/// Lets the loop have turns in which it could begin more sessions.
fn turns(server: &Server) {
    for _ in 0..20 {
        assert_eq!(server.connect_to(9).rest(), b"turn");
    }
}

/// How many datagrams lie in a socket.
fn waiting(socket: &UdpSocket) -> usize {
    socket
        .set_nonblocking(true)
        .expect("it is a socket of ours");
    let count = std::iter::from_fn(|| socket.recv(&mut [0; 2048]).ok()).count();
    socket
        .set_nonblocking(false)
        .expect("it is a socket of ours");
    count
}

/// Sends one datagram; one session comes of it, with this line in the log, and so many answers.
#[track_caller]
fn is_one_session(site: Site, line: &str, answers: usize) {
    let server = site.start();
    let socket = client(&server);
    socket.send(b"hello").expect("it goes out");
    server.line("s.log", line);
    turns(&server);
    assert_eq!(server.read("s.log"), format!("{line}\n"));
    assert_eq!(waiting(&socket), answers);
}

#[test]
fn one_datagram_is_answered_once() {
    if is_missing() {
        return;
    }
    let site = site("server { listen 127.0.0.1:%%PORT%% udp; return answer; }");
    is_one_session(site, "200 UDP 5 6", 1);
}

#[test]
fn each_datagram_is_answered_once() {
    if is_missing() {
        return;
    }
    let server = site("server { listen 127.0.0.1:%%PORT%% udp; return $connection; }").start();
    let socket = client(&server);
    for _ in 0..50 {
        socket.send(b"hello").expect("it goes out");
    }
    server.lines("s.log", 50);
    turns(&server);
    assert_eq!(server.lines("s.log", 50).len(), 50);
    assert_eq!(waiting(&socket), 50);
}

#[test]
fn a_datagram_without_content_is_answered_once() {
    if is_missing() {
        return;
    }
    let server = site("server { listen 127.0.0.1:%%PORT%% udp; return answer; }").start();
    let socket = client(&server);
    socket.send(b"").expect("it goes out");
    server.line("s.log", "200 UDP 0 6");
    turns(&server);
    assert_eq!(waiting(&socket), 1);
    assert_eq!(server.read("s.log").lines().count(), 1);
}

#[test]
fn a_client_that_is_denied_is_denied_once() {
    if is_missing() {
        return;
    }
    let site = site("server { listen 127.0.0.1:%%PORT%% udp; deny all; return answer; }");
    is_one_session(site, "403 UDP 5 0", 0);
}

#[test]
fn a_session_above_the_limit_is_refused_once() {
    if is_missing() {
        return;
    }
    let origin = UdpSocket::bind("127.0.0.1:0").expect("there is a free port");
    let port = origin.local_addr().expect("it is bound").port();
    let server = site(&format!(
        "limit_conn_zone $binary_remote_addr zone=z:1m;
         server {{ listen 127.0.0.1:%%PORT%% udp; limit_conn z 1; proxy_pass 127.0.0.1:{port};
             proxy_responses 1; }}"
    ))
    .start();
    let (first, second) = (client(&server), client(&server));
    first.send(b"held").expect("it goes out");
    let (_, from) = origin.recv_from(&mut [0; 16]).expect("it is passed on");
    second.send(b"hello").expect("it goes out");
    server.line("s.log", "503 UDP 5 0");
    turns(&server);
    assert_eq!(server.read("s.log"), "503 UDP 5 0\n");
    // The other session has gone on meanwhile.
    origin.send_to(b"answer", from).expect("it goes out");
    assert_eq!(first.recv(&mut [0; 16]).expect("an answer"), 6);
    server.line("s.log", "200 UDP 4 6");
}

#[test]
fn a_place_is_free_when_the_last_answer_has_come() {
    if is_missing() {
        return;
    }
    let origin = UdpSocket::bind("127.0.0.1:0").expect("there is a free port");
    let port = origin.local_addr().expect("it is bound").port();
    let server = site(&format!(
        "limit_conn_zone $binary_remote_addr zone=z:1m;
         server {{ listen 127.0.0.1:%%PORT%% udp; limit_conn z 1; proxy_pass 127.0.0.1:{port};
             proxy_responses 1; }}"
    ))
    .start();
    origin
        .set_read_timeout(Some(PATIENCE))
        .expect("a time is valid");
    for _ in 0..30 {
        let socket = client(&server);
        socket.send(b"hello").expect("it goes out");
        let (_, from) = origin
            .recv_from(&mut [0; 16])
            .expect("it is not refused for the one before");
        origin.send_to(b"answer", from).expect("it goes out");
        assert_eq!(socket.recv(&mut [0; 16]).expect("an answer"), 6);
    }
    let lines = server.lines("s.log", 30);
    assert!(lines.iter().all(|line| line == "200 UDP 5 6"), "{lines:?}");
}

#[test]
fn a_group_without_a_live_server_is_tried_once() {
    if is_missing() {
        return;
    }
    let site = site(
        "upstream down { server 127.0.0.1:9 down; }
         server { listen 127.0.0.1:%%PORT%% udp; proxy_pass down; }",
    );
    is_one_session(site, "502 UDP 5 0", 0);
}

#[test]
fn a_name_without_a_resolver_is_tried_once() {
    if is_missing() {
        return;
    }
    let site = site(
        "map $protocol $where { default nowhere.example:9; }
         server { listen 127.0.0.1:%%PORT%% udp; proxy_pass $where; }",
    );
    is_one_session(site, "500 UDP 5 0", 0);
}

#[test]
fn a_socket_that_cannot_be_bound_is_tried_once() {
    if is_missing() || is_oracle() && skip_on_oracle("its status is 500") {
        return;
    }
    // 192.0.2.0/24 is for documentation: no machine has it.
    let site = site(
        "server { listen 127.0.0.1:%%PORT%% udp; proxy_bind 192.0.2.1; proxy_pass 127.0.0.1:9; }",
    )
    .tolerate("192.0.2.1");
    is_one_session(site, "502 UDP 5 0", 0);
}

#[test]
fn a_server_that_is_not_there_is_tried_once() {
    if is_missing() || is_oracle() && skip_on_oracle("it waits for proxy_timeout") {
        return;
    }
    let closed = UdpSocket::bind("127.0.0.1:0").expect("there is a free port");
    let port = closed.local_addr().expect("it is bound").port();
    drop(closed);
    let site = site(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% udp; proxy_pass 127.0.0.1:{port}; }}"
    ));
    is_one_session(site, "502 UDP 5 0", 0);
}

#[test]
fn datagrams_are_not_passed_to_another_address() {
    if is_missing() || is_oracle() && skip_on_oracle("pass came with nginx 1.25") {
        return;
    }
    let site = site("server { listen 127.0.0.1:%%PORT%% udp; pass 127.0.0.1:%%PORT9%%; }");
    is_one_session(site, "500 UDP 5 0", 0);
}

#[test]
fn a_datagram_above_the_number_of_connections_is_refused_once() {
    if is_oracle() && skip_on_oracle("its sockets and upstream connections count as well") {
        return;
    }
    let origin = UdpSocket::bind("127.0.0.1:0").expect("there is a free port");
    let port = origin.local_addr().expect("it is bound").port();
    let server = whole(&format!(
        "events {{ worker_connections 1; }}
         stream {{ server {{ listen 127.0.0.1:%%PORT%% udp; proxy_pass 127.0.0.1:{port}; proxy_responses 1; }} }}"
    ))
    .tolerate("worker_connections are not enough")
    .start();
    let (first, second) = (client(&server), client(&server));
    first.send(b"held").expect("it goes out");
    let (_, from) = origin.recv_from(&mut [0; 16]).expect("it is passed on");
    second.send(b"hello").expect("it goes out");
    server.line("error.log", "worker_connections are not enough");
    origin.send_to(b"answer", from).expect("it goes out");
    assert_eq!(first.recv(&mut [0; 16]).expect("an answer"), 6);
    // The place is free again, and what was refused does not come back to take it.
    origin
        .set_read_timeout(Some(Duration::from_millis(50)))
        .expect("a time is valid");
    let mut buffer = [0; 16];
    assert!(origin.recv_from(&mut buffer).is_err());
    let log = server.read("error.log");
    assert_eq!(log.matches("are not enough").count(), 1, "{log}");
}

#[test]
fn a_session_that_a_reload_cuts_off_does_not_begin_again() {
    if is_missing() || is_oracle() && skip_on_oracle("its old worker ends with its sessions") {
        return;
    }
    // Its name never comes, so that the session waits with its datagram unread.
    let names = UdpSocket::bind("127.0.0.1:0").expect("there is a free port");
    let resolver = names.local_addr().expect("it is bound").port();
    let server = site(&format!(
        "map $protocol $where {{ default nowhere.example:9; }}
         resolver 127.0.0.1:{resolver} ipv6=off; resolver_timeout 1h;
         server {{ listen 127.0.0.1:%%PORT%% udp; proxy_pass $where; }}"
    ))
    .main("worker_shutdown_timeout 50ms;")
    .start();
    let socket = client(&server);
    socket.send(b"hello").expect("it goes out");
    names.recv(&mut [0; 512]).expect("the name is asked for");
    server.signal(weir_tests::Signal::HUP);
    let connected = "udp client 127.0.0.1";
    turns(&server);
    // Another client can be told from one that came back.
    let other = client(&server);
    other.send(b"other").expect("it goes out");
    let port = other.local_addr().expect("it is bound").port();
    server.line("error.log", &format!("{connected}:{port} connected"));
    turns(&server);
    let own = socket.local_addr().expect("it is bound").port();
    let log = server.read("error.log");
    let own = format!("{connected}:{own} connected");
    assert_eq!(log.matches(&own).count(), 1, "{log}");
}

#[test]
fn an_answer_that_cannot_be_sent_is_tried_once() {
    if is_missing() {
        return;
    }
    // A unix socket without a name cannot be answered.
    let server = site("server { listen unix:%%DIR%%/s udp; return answer; }").start();
    let socket = std::os::unix::net::UnixDatagram::unbound().expect("there is memory");
    socket
        .send_to(b"hello", server.path("s"))
        .expect("it goes out");
    server.line("s.log", " UDP 5 0");
    turns(&server);
    assert_eq!(server.read("s.log").lines().count(), 1);
}

/// Each way in which a script can end a session without a look at its datagram.
#[test]
fn a_script_that_reads_nothing_runs_once() {
    if is_oracle() && skip_on_oracle("Debian has no Lua for stream") {
        return;
    }
    for (script, line, answers) in [
        ("content_by_lua_block { }", "200 UDP 5 0", 0),
        ("content_by_lua_block { ngx.print('x') }", "200 UDP 5 1", 1),
        ("content_by_lua_block { ngx.exit(403) }", "403 UDP 5 0", 0),
        ("content_by_lua_block { error('no') }", "500 UDP 5 0", 0),
        (
            "preread_by_lua_block { ngx.exit(403) } return answer;",
            "403 UDP 5 0",
            0,
        ),
        (
            "proxy_pass group; } upstream group { server 127.0.0.1:9; balancer_by_lua_block { error('no') }",
            "500 UDP 5 0",
            0,
        ),
    ] {
        let site = site(&format!(
            "server {{ listen 127.0.0.1:%%PORT%% udp; {script} }}"
        ));
        is_one_session(site, line, answers);
    }
}
