//! Which server answers: address, port, `server_name` in all its forms, `default_server`.

use weir_tests::{Http2, Server, http, skip_on_oracle};

fn named(server: &Server, host: &str) -> String {
    server
        .raw(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"))
        .text()
}

#[test]
fn exact_wildcard_and_regex_names_have_their_rank() {
    let conf = "
        server { listen 127.0.0.1:%%PORT%%; server_name first; return 200 first; }
        server { listen 127.0.0.1:%%PORT%%; server_name example.com; return 200 exact; }
        server { listen 127.0.0.1:%%PORT%%; server_name *.example.com; return 200 leading; }
        server { listen 127.0.0.1:%%PORT%%; server_name *.deep.example.com; return 200 deeper; }
        server { listen 127.0.0.1:%%PORT%%; server_name mail.*; return 200 trailing; }
        server { listen 127.0.0.1:%%PORT%%; server_name .dot.org; return 200 dot; }
        server { listen 127.0.0.1:%%PORT%%; server_name ~^(?<sub>.+)\\.re\\.org$; return 200 re:$sub; }
        server { listen 127.0.0.1:%%PORT%%; server_name ~^x(\\d+)\\.; return 200 \"num:$1\"; }
        server { listen 127.0.0.1:%%PORT%%; server_name ''; return 200 empty; }";
    let server = http(conf).start();
    let rows = [
        ("first", "first"),
        ("unknown", "first"),
        ("example.com", "exact"),
        ("EXAMPLE.com", "exact"),
        ("example.com:8080", "exact"),
        ("example.com.", "exact"),
        ("a.example.com", "leading"),
        ("a.b.example.com", "leading"),
        ("a.deep.example.com", "deeper"),
        ("mail.example.com", "leading"),
        ("mail.anything", "trailing"),
        ("dot.org", "dot"),
        ("a.dot.org", "dot"),
        ("adot.org", "first"),
        ("a.b.re.org", "re:a.b"),
        ("x12.net", "num:12"),
        ("127.0.0.1", "first"),
        ("[::1]:80", "first"),
    ];
    for (host, expected) in rows {
        assert_eq!(named(&server, host), expected, "{host}");
    }
    assert_eq!(server.raw("GET / HTTP/1.0\r\n\r\n").text(), "empty");
}

#[test]
fn default_server_answers_what_nobody_claims() {
    let conf = "
        server { listen 127.0.0.1:%%PORT%%; server_name a; return 200 a; }
        server { listen 127.0.0.1:%%PORT%% default_server; server_name b; return 200 b; }";
    let server = http(conf).start();
    assert_eq!(
        (named(&server, "a").as_str(), named(&server, "x").as_str()),
        ("a", "b")
    );
}

#[test]
fn each_port_has_its_own_servers() {
    let conf = "
        server { listen 127.0.0.1:%%PORT%%; server_name a; return 200 one; }
        server { listen 127.0.0.1:%%PORT1%%; server_name a; return 200 two; }
        server { listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:%%PORT1%%; server_name both; return 200 both; }";
    let server = http(conf).start();
    for (port, host, expected) in [
        (0, "a", "one"),
        (1, "a", "two"),
        (0, "both", "both"),
        (1, "both", "both"),
    ] {
        let mut connection = server.connect_to(port);
        connection.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(connection.reply().text(), expected, "{host} at {port}");
    }
}

#[test]
fn a_wildcard_address_and_an_exact_one_share_a_port() {
    let conf = "
        server { listen %%PORT%%; return 200 any; }
        server { listen 127.0.0.1:%%PORT%%; return 200 loopback; }";
    let server = http(conf).start();
    assert_eq!(named(&server, "x"), "loopback");
    let stream = std::net::TcpStream::connect(("127.0.0.2", server.port(0)));
    let mut stream = stream.expect("all of 127.0.0.0/8 is loopback");
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.0\r\n\r\n").expect("the server reads");
    let text = std::io::read_to_string(stream).expect("the server answers");
    assert!(text.ends_with("any"), "{text}");
}

#[test]
fn a_unix_socket_is_listened_on() {
    let server =
        http("server { listen unix:%%DIR%%/socket; return 200 \"$server_addr|$remote_addr\"; }")
            .start();
    let mut stream =
        std::os::unix::net::UnixStream::connect(server.path("socket")).expect("the server listens");
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.0\r\n\r\n").expect("the server reads");
    let text = std::io::read_to_string(stream).expect("the server answers");
    assert!(
        text.ends_with(&format!("unix:{}|unix:", server.path("socket").display())),
        "{text}"
    );
}

#[test]
fn a_unix_socket_is_removed_at_the_end() {
    let server = http("server { listen unix:%%DIR%%/socket; listen 127.0.0.1:%%PORT%%; }").start();
    let socket = server.path("socket");
    assert!(socket.exists());
    server.stop();
    assert!(!socket.exists());
}

#[test]
fn an_ipv6_address_is_listened_on() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("skipped: this machine has no IPv6 loopback");
        return;
    }
    let server =
        http("server { listen [::1]:%%PORT%%; return 200 \"$server_addr $remote_addr\"; }").start();
    let mut stream =
        std::net::TcpStream::connect(("::1", server.port(0))).expect("the server listens");
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.0\r\n\r\n").expect("the server reads");
    let text = std::io::read_to_string(stream).expect("the server answers");
    assert!(text.ends_with("::1 ::1"), "{text}");
}

#[test]
fn the_absolute_form_names_the_host() {
    let conf = "
        server { listen 127.0.0.1:%%PORT%%; server_name a; return 200 \"a $host $uri\"; }
        server { listen 127.0.0.1:%%PORT%%; server_name b; return 200 \"b $host $uri\"; }";
    let server = http(conf).start();
    assert_eq!(
        server
            .raw("GET http://b/x HTTP/1.1\r\nHost: b\r\n\r\n")
            .text(),
        "b b /x"
    );
    assert_eq!(
        server
            .raw("GET http://b:80?q HTTP/1.1\r\nHost: b\r\n\r\n")
            .text(),
        "b b /"
    );
    assert_eq!(server.raw("GET http://b HTTP/1.0\r\n\r\n").text(), "b b /");
}

#[test]
fn listen_options_are_accepted() {
    let conf = "
        server { listen 127.0.0.1:%%PORT%% backlog=100 rcvbuf=64k sndbuf=64k so_keepalive=on deferred; return 200 one; }
        server { listen 127.0.0.1:%%PORT1%% reuseport; return 200 two; }
        server { listen 127.0.0.1:%%PORT2%% so_keepalive=30s::5 fastopen=8; return 200 three; }";
    let server = http(conf).main("worker_processes 2;").start();
    for (port, text) in [(0, "one"), (1, "two"), (2, "three")] {
        assert_eq!(server.connect_to(port).get("/").text(), text);
    }
}

#[test]
fn the_first_name_is_shown_in_lower_case() {
    for (name, shown) in [
        ("Example.COM", "example.com"),
        (".Example.COM", "example.com"),
        ("*.Example.COM", "*.example.com"),
        ("Example.*", "example.*"),
        ("WWW.Example.com.", "www.example.com."),
        ("\"\" Example.com", ""),
        ("~^Www", "~^Www"),
    ] {
        let conf = format!(
            "server {{
                listen 127.0.0.1:%%PORT%%;
                server_name {name};
                location / {{ return 200 $server_name; }}
                location /redirected {{ server_name_in_redirect on; absolute_redirect on; return 301 /x; }}
            }}"
        );
        let server = http(&conf).start();
        assert_eq!(server.get("/").text(), shown, "{name}");
        let target = server
            .get("/redirected")
            .expect(301)
            .field("Location")
            .to_owned();
        if shown.starts_with(|c: char| c.is_ascii_alphabetic()) {
            assert_eq!(
                target,
                format!("http://{shown}:{}/x", server.port(0)),
                "{name}"
            );
        }
    }
}

#[test]
fn the_name_of_the_machine_is_shown_where_it_is_a_servers() {
    let conf =
        "server { listen 127.0.0.1:%%PORT%%; server_name $hostname; return 200 $server_name; }";
    let text = http(conf).start().get("/").text();
    assert!(!text.is_empty() && !text.contains('$'), "{text}");
}
/// The request line comes before the fields: what it says wrong is answered before anybody knows which server is meant.
#[test]
fn a_target_that_makes_no_sense_is_answered_by_the_default_server() {
    let who = |name: &str| format!("error_page 400 /who; location = /who {{ return 200 {name}; }}");
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; access_log default.log; {} }}
         server {{ listen 127.0.0.1:%%PORT%%; server_name other; access_log other.log; {} }}",
        who("default"),
        who("other")
    ))
    .start();
    let bad = |target: &str, fields: &str| {
        server.raw(format!(
            "GET {target} HTTP/1.1\r\nHost: other\r\n{fields}\r\n"
        ))
    };
    for target in ["/bad%zz", "/../x", "/a%00", "/%", "http://other/bad%zz"] {
        let reply = bad(target, "Connection: close\r\n").expect(400);
        assert_eq!(reply.text(), "default", "{target}");
        // Whatever else is wrong.
        let reply = bad(target, "Content-Length: x\r\n").expect(400);
        assert_eq!(reply.text(), "default", "{target}");
    }
    let reply = bad("/", "Content-Length: x\r\n").expect(400);
    assert_eq!(reply.text(), "other");
    assert_eq!(server.lines("default.log", 10).len(), 10);
    assert_eq!(server.lines("other.log", 1).len(), 1);
}

#[test]
fn a_target_that_makes_no_sense_is_answered_by_the_default_server_on_http_2() {
    if skip_on_oracle("nginx takes the host where :authority comes before :path") {
        return;
    }
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; http2 on; error_page 400 /who; location = /who { return 200 default; } }
         server { listen 127.0.0.1:%%PORT%%; server_name other; http2 on; error_page 400 /who; location = /who { return 200 other; } }",
    )
    .start();
    let mut client = Http2::connect(&server, &[]);
    for (path, length, who) in [("/bad%zz", "0", "default"), ("/", "x", "other")] {
        let fields = [
            (":method", "GET"),
            (":authority", "other"),
            (":scheme", "http"),
            (":path", path),
            ("content-length", length),
        ];
        let stream = client.begin(&fields, true);
        let reply = client.reply(stream);
        assert_eq!((reply.status, reply.text().as_str()), (400, who));
    }
}
