//! `stream`: TCP and UDP sessions, what becomes of them, and what is logged of them.

use std::io::Write;
use std::net::UdpSocket;
use std::time::Duration;

use weir_tests::{Scripted, Server, Site, is_oracle, read_until, run, skip_on_oracle, whole};

/// A site with this `stream` block. `line` is a log format with what most tests look at.
fn stream(block: &str) -> Site {
    whole(&format!(
        "events {{ }}\nstream {{\n log_format line '$status $protocol $bytes_received $bytes_sent \
         $upstream_bytes_sent $upstream_bytes_received';\n{block}\n}}\n"
    ))
}

/// nginx may be built without stream, or with it as a shared object that is not there.
pub(crate) fn is_missing() -> bool {
    let built_in = || {
        run(&["-V"])
            .stderr
            .split_whitespace()
            .any(|word| word == "--with-stream")
    };
    is_oracle() && !built_in() && skip_on_oracle("it is built without stream")
}

/// What a connection to a port is answered with until it closes.
fn answer(server: &Server, index: usize) -> String {
    String::from_utf8_lossy(&server.connect_to(index).rest()).into_owned()
}

/// Answers each connection with `reply` when a line came, and closes.
fn one_line(reply: &'static str) -> Scripted {
    Scripted::start(move |client, _| {
        if read_until(client, b"\n").ends_with(b"\n") {
            let _ = client.write_all(reply.as_bytes());
        }
    })
}

#[test]
fn http_and_stream_with_sockets_of_their_own_for_each_loop() {
    if is_missing() {
        return;
    }
    let conf = "worker_processes 4;
        events {}
        http { server { listen 127.0.0.1:%%PORT%% reuseport; server_name localhost; return 200 \"OK\"; } }
        stream { server { listen 127.0.0.1:%%PORT1%% reuseport; proxy_pass 127.0.0.1:%%PORT%%; } }";
    let server = whole(conf).start();
    for _ in 0..20 {
        let mut connection = server.connect_to(1);
        connection.request("GET", "/", &[]);
        assert_eq!(connection.reply().expect(200).text(), "OK");
        connection.request("GET", "/", &[]);
        assert_eq!(connection.reply().expect(200).text(), "OK");
    }
}

#[test]
fn a_session_is_passed_on_and_logged() {
    if is_missing() {
        return;
    }
    let origin = one_line("answer");
    let conf = format!(
        "server {{ listen 127.0.0.1:%%PORT%%; proxy_pass 127.0.0.1:{}; access_log s.log line; }}",
        origin.port()
    );
    let server = stream(&conf).start();
    let mut connection = server.connect();
    connection.send("hello\n");
    assert_eq!(connection.rest(), b"answer");
    server.line("s.log", "200 TCP 6 6 6 6");
}

#[test]
fn what_is_large_arrives_whole() {
    if is_missing() {
        return;
    }
    const SIZE: usize = 8 << 20;
    let content: Vec<u8> = (0..SIZE).map(|i| (i * 31 % 251) as u8).collect();
    let sent = content.clone();
    let origin = Scripted::start(move |client, _| {
        read_until(client, b"\n");
        let _ = client.write_all(&sent);
    });
    let conf = format!(
        "server {{ listen 127.0.0.1:%%PORT%%; proxy_pass 127.0.0.1:{}; access_log s.log line; }}",
        origin.port()
    );
    let server = stream(&conf).start();
    let mut connection = server.connect();
    connection.send("x\n");
    assert!(connection.rest() == content);
    server.line("s.log", &format!("200 TCP 2 {SIZE} 2 {SIZE}"));
}

#[test]
fn half_closed_connections_go_on_when_they_may() {
    if is_missing() {
        return;
    }
    // It answers when the client has said all.
    let origin = Scripted::start(|client, _| {
        let all = read_until(client, b"\0");
        let _ = client.write_all(&all);
    });
    let conf = format!(
        "server {{ listen 127.0.0.1:%%PORT%%; proxy_pass 127.0.0.1:{0}; proxy_half_close on; }}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass 127.0.0.1:{0}; }}",
        origin.port()
    );
    let server = stream(&conf).start();
    for (index, answer) in [(0, &b"all"[..]), (1, b"")] {
        let mut connection = server.connect_to(index);
        connection.send("all");
        connection.half_close();
        assert_eq!(connection.rest(), answer, "{index}");
    }
}

#[test]
fn a_server_that_is_not_there_is_passed_over() {
    if is_missing() {
        return;
    }
    let origin = one_line("here");
    let conf = format!(
        "upstream u {{ server 127.0.0.1:%%PORT9%%; server 127.0.0.1:{0} backup; }}
         log_format addresses '$status $upstream_addr';
         server {{ listen 127.0.0.1:%%PORT%%; proxy_pass u; access_log s.log addresses; }}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass u; proxy_next_upstream off; access_log off.log addresses; }}",
        origin.port()
    );
    let server = stream(&conf).tolerate("connect() failed").start();
    let none = server.port(9);
    assert_eq!(answer(&server, 1), "");
    server.line("off.log", &format!("502 127.0.0.1:{none}"));
    let mut connection = server.connect();
    connection.send("x\n");
    assert_eq!(connection.rest(), b"here");
    server.line("s.log", &format!("127.0.0.1:{}", origin.port()));
}

#[test]
fn the_proxy_protocol_is_read_and_written() {
    if is_missing() {
        return;
    }
    let conf =
        "server { listen 127.0.0.1:%%PORT%%; proxy_pass 127.0.0.1:%%PORT2%%; proxy_protocol on; }
        server { listen 127.0.0.1:%%PORT1%%; proxy_pass 127.0.0.1:%%PORT2%%; proxy_protocol v2; }
        server { listen 127.0.0.1:%%PORT2%% proxy_protocol; access_log in.log line;
            return \"$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_port\"; }
        server { listen 127.0.0.1:%%PORT3%% proxy_protocol; set_real_ip_from 127.0.0.1;
            return \"$remote_addr:$remote_port $realip_remote_addr\"; }";
    let server = stream(conf).tolerate("broken header").start();
    for index in [0, 1] {
        let mut connection = server.connect_to(index);
        let expected = format!(
            "127.0.0.1 {} {}",
            connection.local_port(),
            server.port(index)
        );
        assert_eq!(String::from_utf8_lossy(&connection.rest()), expected);
    }
    let mut connection = server.connect_to(3);
    connection.send("PROXY TCP4 192.0.2.1 192.0.2.2 123 5678\r\n");
    assert_eq!(connection.rest(), b"192.0.2.1:123 127.0.0.1");
    let mut connection = server.connect_to(2);
    connection.send("PROXY INVALID");
    assert_eq!(connection.rest(), b"");
    server.line("in.log", "400 TCP");
}

#[test]
fn variables_limits_and_rules() {
    if is_missing() {
        return;
    }
    let conf = "map $server_port $which { %%PORT%% first; default other; }
        geo $net { default none; 127.0.0.0/8 local; }
        limit_conn_zone $binary_remote_addr zone=z:1m;
        server { listen 127.0.0.1:%%PORT%%; set $said \"$which $net\"; return \"$said $server_name.\"; server_name a b; }
        server { listen 127.0.0.1:%%PORT1%%; deny all; return no; access_log deny.log line; }
        server { listen 127.0.0.1:%%PORT2%%; limit_conn z 1; proxy_pass 127.0.0.1:%%PORT3%%; access_log limit.log line; }
        server { listen 127.0.0.1:%%PORT3%%; proxy_pass 127.0.0.1:%%PORT4%%; }
        server { listen 127.0.0.1:%%PORT4%% proxy_protocol; return never; }";
    let site = stream(conf)
        .tolerate("access forbidden")
        .tolerate("limiting connections");
    let server = site.start();
    assert_eq!(answer(&server, 0), "first local a.");
    assert_eq!(answer(&server, 1), "");
    server.line("deny.log", "403 TCP 0 0 - -");
    let held = server.connect_to(2);
    // The first one is counted when the second one comes, whichever loop's turn it is.
    assert_eq!(answer(&server, 2), "");
    server.line("limit.log", "503 TCP");
    drop(held);
}

/// A server of datagrams that answers each with its client's port and then the datagram, `answers` times.
fn datagrams(answers: usize) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("there is a free port");
    let port = socket.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            for _ in 0..answers {
                let text = format!(
                    "{} {}",
                    client.port(),
                    String::from_utf8_lossy(&buffer[..length])
                );
                let _ = socket.send_to(text.as_bytes(), client);
            }
        }
    });
    port
}

/// Sends a datagram and gives the port that the answer says it came from.
fn ask(socket: &UdpSocket, text: &str) -> String {
    socket.send(text.as_bytes()).expect("it goes out");
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer).expect("an answer comes");
    let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
    let (port, rest) = answer.split_once(' ').expect("a port and a text");
    assert_eq!(rest, text);
    port.to_owned()
}

#[test]
fn datagrams_of_a_client_are_sessions() {
    if is_missing() {
        return;
    }
    let origin = datagrams(1);
    let conf = format!(
        "proxy_timeout 5s;
         server {{ listen 127.0.0.1:%%PORT%% udp; proxy_pass 127.0.0.1:{origin}; }}
         server {{ listen 127.0.0.1:%%PORT1%% udp; proxy_pass 127.0.0.1:{origin}; proxy_requests 2; proxy_responses 1;
             access_log s.log line; }}
         server {{ listen 127.0.0.1:%%PORT2%%; return up; }}"
    );
    let server = stream(&conf).start();
    let client = |index| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("there is a free port");
        socket
            .connect(("127.0.0.1", server.port(index)))
            .expect("it is local");
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .expect("a time is valid");
        socket
    };
    let one = client(0);
    let port = ask(&one, "a");
    assert_eq!(ask(&one, "bc"), port);
    assert_ne!(ask(&client(0), "a"), port);

    let two = client(1);
    let first = ask(&two, "a");
    assert_eq!(ask(&two, "bc"), first);
    assert_ne!(ask(&two, "d"), first, "a session has two datagrams");
    // Each answer has the port and a blank in front.
    let answered = 3 + 2 * (first.len() + 1);
    server.line("s.log", &format!("200 UDP 3 {answered} 3 {answered}"));
}

#[test]
fn mistakes_are_reported() {
    if is_missing() {
        return;
    }
    for (block, message) in [
        (
            "server { return a; }",
            "no \"listen\" is defined for server in",
        ),
        (
            "server { listen 127.0.0.1:%%PORT%% udp backlog=5; return a; }",
            "\"backlog\" parameter is incompatible with \"udp\"",
        ),
        (
            "server { listen 127.0.0.1:%%PORT%%; proxy_pass 127.0.0.1; }",
            "no port in upstream \"127.0.0.1\"",
        ),
        (
            "upstream u { server 127.0.0.1; }",
            "no port in upstream \"127.0.0.1\"",
        ),
        (
            "server { listen 127.0.0.1:%%PORT%%; return a; access_log a.log; }",
            "log format is not specified",
        ),
        (
            "server { listen 127.0.0.1:%%PORT%%; return a; access_log a.log none; }",
            "unknown log format \"none\"",
        ),
        (
            "server { listen 127.0.0.1:%%PORT%%; limit_conn z 1; return a; }",
            "zero size shared memory zone \"z\"",
        ),
    ] {
        let finished = stream(block).test();
        // nginx finds some of them when it has found the syntax to be right.
        assert!(
            finished.stderr.contains(message),
            "{block}: {}",
            finished.stderr
        );
    }
}

/// The first message of a TLS client that asks for this name and these protocols.
fn client_hello(name: &str, protocols: &[&str]) -> Vec<u8> {
    let listed = |bytes: Vec<u8>| [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat();
    let extension = |kind: u8, content: Vec<u8>| [vec![0, kind], listed(content)].concat();
    let mut extensions = extension(
        0,
        listed([vec![0], listed(name.as_bytes().to_vec())].concat()),
    );
    let protocols = protocols
        .iter()
        .flat_map(|name| [&[name.len() as u8], name.as_bytes()].concat());
    extensions.extend(extension(16, listed(protocols.collect())));
    extensions.extend(extension(43, vec![2, 3, 4]));
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend(listed(vec![0x13, 1]));
    body.extend([1, 0]);
    body.extend(listed(extensions));
    let length = (body.len() as u32).to_be_bytes();
    [vec![1], length[1..].to_vec(), body].concat()
}

/// A handshake message in records of at most so many bytes.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    let record = |part: &[u8]| [&[22, 3, 1], &(part.len() as u16).to_be_bytes()[..], part].concat();
    message.chunks(size).flat_map(record).collect()
}

#[test]
fn what_a_tls_client_asks_for_is_known_before_it_is_passed_on() {
    if is_missing() {
        return;
    }
    // What was looked at reaches the server all the same.
    let origin = Scripted::start(|client, _| {
        let mut first = [0; 5];
        if std::io::Read::read_exact(client, &mut first).is_ok() {
            let _ = client.write_all(format!("origin got {}", first[0]).as_bytes());
        }
    });
    let conf = format!(
        "ssl_preread on; preread_buffer_size 1k; preread_timeout 1s;
         map $ssl_preread_server_name $to {{ pass.example 127.0.0.1:{}; }}
         server {{ listen 127.0.0.1:%%PORT%%; access_log s.log line;
            return '$ssl_preread_protocol $ssl_preread_server_name $ssl_preread_alpn_protocols'; }}
         server {{ listen 127.0.0.1:%%PORT1%%; proxy_pass $to; }}",
        origin.port()
    );
    let server = stream(&conf).start();
    let hello = client_hello("a.example", &["h2", "http/1.1"]);
    for size in [usize::MAX, 70, 5] {
        let mut connection = server.connect();
        connection.send(records(&hello, size.min(hello.len())));
        let answer = String::from_utf8_lossy(&connection.rest()).into_owned();
        assert_eq!(answer, "TLSv1.3 a.example h2,http/1.1", "{size}");
    }
    let mut connection = server.connect();
    connection.send_slowly(records(&hello, 33));
    assert!(connection.rest().starts_with(b"TLSv1.3"));
    let mut connection = server.connect_to(1);
    connection.send(records(&client_hello("pass.example", &["h2"]), 1000));
    assert_eq!(connection.rest(), b"origin got 22");
    // Another protocol has no such values.
    let mut connection = server.connect();
    connection.send("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(connection.rest(), b"  ");
}

#[test]
fn a_hello_that_does_not_come_ends_the_session() {
    if is_missing() {
        return;
    }
    let conf = "server { listen 127.0.0.1:%%PORT%%; ssl_preread on; preread_buffer_size 100; preread_timeout 100ms;
            access_log s.log line; return never; }";
    let server = stream(conf).tolerate("preread buffer full").start();
    let message = client_hello("a.example", &["h2"]);
    // Longer than may be looked at.
    let mut connection = server.connect();
    connection.send(records(&[&message[..], &[0; 200]].concat(), 1000));
    assert_eq!(connection.rest(), b"");
    server.line("s.log", "400 TCP");
    server.line(
        "error.log",
        "preread buffer full while prereading client data",
    );
    // A part, and then nothing; and nothing at all.
    let mut connection = server.connect();
    connection.send(&records(&message, 1000)[..50]);
    assert_eq!(connection.rest(), b"");
    assert_eq!(server.connect().rest(), b"");
    let ends = server.lines("s.log", 3);
    assert!(
        ends[1].starts_with("200") && ends[2].starts_with("200"),
        "{ends:?}"
    );
}

#[test]
fn the_name_in_a_hello_chooses_the_server() {
    if is_missing() || skip_on_oracle("it has names in stream since 1.25.5") {
        return;
    }
    let conf = "ssl_preread on;
        server { listen 127.0.0.1:%%PORT%%; return 'default $server_name'; }
        server { listen 127.0.0.1:%%PORT%%; server_name a.example *.b.example; return 'named $server_name'; }
        server { listen 127.0.0.1:%%PORT%%; server_name ~^(?<who>.+)\\.c\\.example$; return 'matched $who'; }
        server { listen 127.0.0.1:%%PORT%% default_server; server_name z; return 'last'; }";
    let server = stream(conf).start();
    for (name, expected) in [
        ("A.example", "named a.example"),
        ("x.b.example", "named a.example"),
        ("you.c.example", "matched you"),
        ("other", "last"),
        ("", "last"),
        ("bad name", "last"),
    ] {
        let mut connection = server.connect();
        connection.send(records(&client_hello(name, &["h2"]), 1000));
        let answer = String::from_utf8_lossy(&connection.rest()).into_owned();
        assert_eq!(answer, expected, "{name}");
    }
}

#[test]
fn a_connection_is_handed_to_another_address_of_the_server() {
    if is_missing() || skip_on_oracle("it has pass since 1.25.5") {
        return;
    }
    let conf = "events {}
        http { server { listen 127.0.0.1:%%PORT3%%; return 200 \"$server_port $request_uri\"; }
               server { listen 127.0.0.1:%%PORT4%% proxy_protocol; return 200 $proxy_protocol_addr; } }
        stream {
            log_format line '$server_port $status'; access_log s.log line;
            map $ssl_preread_server_name $to { a.example 127.0.0.1:%%PORT5%%; self 127.0.0.1:%%PORT%%;
                nowhere 127.0.0.1:1; broken a.invalid:80; default 127.0.0.1:%%PORT3%%; }
            server { listen 127.0.0.1:%%PORT%%; ssl_preread on; pass $to; }
            server { listen 127.0.0.1:%%PORT1%%; pass 127.0.0.1:%%PORT%%; }
            server { listen 127.0.0.1:%%PORT2%%; pass 127.0.0.1:%%PORT4%%; }
            server { listen 0.0.0.0:%%PORT5%%; return 'returned at $server_addr:$server_port'; } }";
    let server = whole(conf)
        .tolerate("stream pass cycle")
        .tolerate("port not found")
        .tolerate("no addresses in pass")
        .start();
    // To http, at once and by way of another server of stream. What was read for `ssl_preread` is not lost.
    for index in [0, 1] {
        let mut connection = server.connect_to(index);
        for target in ["/a", "/b"] {
            let reply = connection.get(target).expect(200);
            assert_eq!(reply.text(), format!("{} {target}", server.port(3)));
        }
    }
    let mut connection = server.connect_to(2);
    connection.send("PROXY TCP4 192.0.2.7 192.0.2.1 1 2\r\nGET / HTTP/1.0\r\n\r\n");
    assert!(connection.rest().ends_with(b"\r\n\r\n192.0.2.7"));
    // To stream, where the address counts that was named, not the wildcard.
    let hello = |name: &str| {
        let mut connection = server.connect();
        connection.send(records(&client_hello(name, &["h2"]), 1000));
        String::from_utf8_lossy(&connection.rest()).into_owned()
    };
    let expected = format!("returned at 127.0.0.1:{}", server.port(5));
    assert_eq!(hello("a.example"), expected);
    for (name, line) in [
        ("self", "stream pass cycle while passing connection to port"),
        ("nowhere", "port not found for \"127.0.0.1:1\""),
        ("broken", "no addresses in pass \"a.invalid:80\""),
    ] {
        assert_eq!(hello(name), "");
        server.line("error.log", line);
    }
    let port = server.port(0);
    let ends = server.lines("s.log", 4);
    let expected = [
        format!("{} 200", server.port(5)),
        format!("{port} 500"),
        format!("{port} 200"),
        format!("{port} 500"),
    ];
    assert_eq!(ends, expected);
}
