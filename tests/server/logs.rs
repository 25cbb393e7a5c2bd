//! `access_log` with formats, escaping, conditions and buffers; `error_log` with levels.

use flate2::read::MultiGzDecoder;
use std::io::Read;
use weir_tests::{Scripted, Signal, http, read_until, send, skip_on_oracle, until, whole};

#[test]
fn the_combined_format_is_the_default() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; return 200 hello; }").start();
    server.get_with("/a?b=c", &["User-Agent: agent \"x\"", "Referer: http://r/"]);
    let line = server.lines("access.log", 1).remove(0);
    let (start, rest) = line.split_once('[').unwrap_or_default();
    let (_, rest) = rest.split_once("] ").unwrap_or_default();
    assert_eq!(start, "127.0.0.1 - - ");
    assert_eq!(
        rest,
        "\"GET /a?b=c HTTP/1.1\" 200 5 \"http://r/\" \"agent \\x22x\\x22\""
    );
}

#[test]
fn escapes_are_default_json_or_none() {
    let conf = "
        log_format plain '$http_x';
        log_format json escape=json '$http_x';
        log_format none escape=none '$http_x|$http_none';
        log_format default escape=default '$http_x|$http_none';
        server {
            listen 127.0.0.1:%%PORT%%;
            access_log plain.log plain;
            access_log json.log json;
            access_log none.log none;
            access_log default.log default;
            return 200;
        }";
    let server = http(conf).start();
    server.raw("GET / HTTP/1.1\r\nHost: a\r\nX: q\"b\\t\u{7f}ü\r\n\r\n");
    assert_eq!(
        server.lines("plain.log", 1),
        ["q\\x22b\\x5Ct\\x7F\\xC3\\xBC"]
    );
    assert_eq!(server.lines("json.log", 1), ["q\\\"b\\\\t\u{7f}ü"]);
    assert_eq!(server.lines("none.log", 1), ["q\"b\\t\u{7f}ü|"]);
    assert_eq!(
        server.lines("default.log", 1),
        ["q\\x22b\\x5Ct\\x7F\\xC3\\xBC|-"]
    );
}

#[test]
fn the_log_is_chosen_per_location_and_switched_off() {
    let conf = "
        log_format short '$uri';
        access_log outer.log short;
        server {
            listen 127.0.0.1:%%PORT%%;
            location / { return 200; }
            location /inner { access_log inner.log short; return 200; }
            location /off { access_log off; return 200; }
            location /two { access_log one.log short; access_log two.log short; return 200; }
        }";
    let server = http(conf).start();
    for target in ["/off", "/inner", "/two", "/"] {
        server.get(target);
    }
    assert_eq!(server.lines("outer.log", 1), ["/"]);
    assert_eq!(server.lines("inner.log", 1), ["/inner"]);
    assert_eq!(server.lines("one.log", 1), ["/two"]);
    assert_eq!(server.lines("two.log", 1), ["/two"]);
}

#[test]
fn a_condition_decides() {
    let conf = "
        log_format short '$uri';
        map $status $bad { ~^[23] 0; default 1; }
        server { listen 127.0.0.1:%%PORT%%; access_log bad.log short if=$bad; access_log arg.log short if=$arg_log;
            location /404 { return 404; } location / { return 200; } }";
    let server = http(conf).start();
    for target in ["/a", "/404", "/b?log=1", "/c?log=0", "/d?log="] {
        server.get(target);
    }
    assert_eq!(server.lines("bad.log", 1), ["/404"]);
    assert_eq!(server.lines("arg.log", 1), ["/b"]);
}

#[test]
fn a_path_may_have_variables() {
    let conf = "
        log_format short '$uri';
        open_log_file_cache max=10;
        server { listen 127.0.0.1:%%PORT%%; access_log %%DIR%%/log-$arg_n.log short; return 200; }";
    let server = http(conf).start();
    for target in ["/a?n=1", "/b?n=2", "/c?n=1"] {
        server.get(target);
    }
    assert_eq!(server.lines("log-1.log", 2), ["/a", "/c"]);
    assert_eq!(server.lines("log-2.log", 1), ["/b"]);
}

#[test]
fn a_buffer_is_written_when_full_on_flush_and_at_the_end() {
    let conf = "
        log_format short '$uri';
        server { listen 127.0.0.1:%%PORT%%; access_log buffered.log short buffer=64k; access_log flushed.log short buffer=64k flush=100ms;
            access_log small.log short buffer=64; return 200; }";
    let server = http(conf).start();
    for i in 0..30 {
        server.get(&format!("/{i}"));
    }
    assert_eq!(server.lines("flushed.log", 30).len(), 30);
    assert!(
        server.read("small.log").lines().count() >= 10,
        "a full buffer is written"
    );
    assert_eq!(server.read("buffered.log"), "");
    server.signal(Signal::USR1);
    assert_eq!(
        server.lines("buffered.log", 30).len(),
        30,
        "a reopen writes what is buffered"
    );
}

#[test]
fn a_buffered_log_is_complete_after_a_stop() {
    let conf = "log_format short '$uri'; server { listen 127.0.0.1:%%PORT%%; access_log b.log short buffer=64k; return 200; }";
    let mut server = http(conf).start();
    for i in 0..5 {
        server.get(&format!("/{i}"));
    }
    server.signal(Signal::QUIT);
    assert!(server.ended().success());
    assert_eq!(server.read("b.log"), "/0\n/1\n/2\n/3\n/4\n");
}

#[test]
fn a_log_may_be_packed() {
    let conf = "log_format short '$uri'; server { listen 127.0.0.1:%%PORT%%; access_log packed.log short gzip buffer=4k; return 200; }";
    let mut server = http(conf).start();
    for i in 0..5 {
        server.get(&format!("/{i}"));
    }
    server.signal(Signal::QUIT);
    assert!(server.ended().success());
    let bytes = std::fs::read(server.path("packed.log")).expect("the log is there");
    let mut text = String::new();
    MultiGzDecoder::new(bytes.as_slice())
        .read_to_string(&mut text)
        .expect("the log is gzip");
    assert_eq!(text, "/0\n/1\n/2\n/3\n/4\n");
}

#[test]
fn the_log_tells_status_and_bytes_of_each_kind_of_answer() {
    let conf = "
        log_format short '$status $body_bytes_sent $request';
        server { listen 127.0.0.1:%%PORT%%; access_log access.log short; location / { } location /444 { return 444; } location /r { return 200 hello; } }";
    let server = http(conf).file("html/a", "0123456789").start();
    let mut expected = Vec::new();
    let mut ask = |bytes: &str, line: &str| {
        server.raw_or_closed(bytes);
        expected.push(line.to_owned());
        assert_eq!(server.lines("access.log", expected.len()), expected);
    };
    ask("GET /a HTTP/1.0\r\n\r\n", "200 10 GET /a HTTP/1.0");
    ask("HEAD /r HTTP/1.0\r\n\r\n", "200 0 HEAD /r HTTP/1.0");
    ask(
        "GET /a HTTP/1.0\r\nRange: bytes=0-2\r\n\r\n",
        "206 3 GET /a HTTP/1.0",
    );
    ask(
        "GET /a HTTP/1.0\r\nIf-None-Match: *\r\n\r\n",
        "304 0 GET /a HTTP/1.0",
    );
    ask("GET /444 HTTP/1.0\r\n\r\n", "444 0 GET /444 HTTP/1.0");
    ask("GET /r\r\n", "200 5 GET /r");
}

#[test]
fn the_log_has_a_date_of_content_only_where_there_is_some() {
    let origin = Scripted::start(|stream, _| {
        let head = String::from_utf8(read_until(stream, b"\r\n\r\n")).expect("a head");
        let path = head.split(' ').nth(1).expect("a target");
        let (status, date) = match path {
            "/200" => ("200 OK", "Sun, 09 Sep 2001 01:46:40 GMT"),
            "/odd" => ("404 Not Found", "yesterday"),
            _ => ("404 Not Found", "Sun, 09 Sep 2001 01:46:40 GMT"),
        };
        let head = format!("HTTP/1.1 {status}\r\nLast-Modified: {date}\r\n");
        send(
            stream,
            format!("{head}Content-Length: 0\r\nConnection: close\r\n\r\n"),
        );
    });
    let conf = format!(
        "log_format date '$status $sent_http_last_modified';
        server {{ listen 127.0.0.1:%%PORT%%; access_log access.log date; location / {{ proxy_pass http://127.0.0.1:{}; }} }}",
        origin.port()
    );
    let server = http(&conf).start();
    for path in ["/200", "/404", "/odd"] {
        assert!(server.get(path).has("Last-Modified"), "{path}");
    }
    assert_eq!(
        server.lines("access.log", 3),
        [
            "200 Sun, 09 Sep 2001 01:46:40 GMT",
            "404 -",
            "404 yesterday"
        ]
    );
}

#[test]
fn a_malformed_request_is_logged_escaped() {
    let conf = "log_format short '$status \"$request\"'; server { listen 127.0.0.1:%%PORT%%; access_log access.log short; }";
    let server = http(conf).start();
    server.raw("GE\u{1}T / HTTP/1.1\r\n\r\n");
    assert_eq!(
        server.lines("access.log", 1),
        ["400 \"GE\\x01T / HTTP/1.1\""]
    );
    server.line(
        "error.log",
        "client sent invalid method while reading client request line",
    );
}

#[test]
fn the_error_log_has_levels_and_context() {
    let conf = "
        error_log error.log warn;
        server { listen 127.0.0.1:%%PORT%%; server_name named;
            location /own { error_log own.log error; }
            location /info { error_log info.log info; } }";
    let server = http(conf).start();
    server.get_with("/none?x=y", &["Referer: http://r/"]);
    let line = server.line("error.log", "/none");
    assert!(line.contains(" [error] "), "{line}");
    assert!(line.contains("open() \""), "{line}");
    assert!(line.contains(" failed (2: No such file or directory), client: 127.0.0.1, server: named, request: \"GET /none?x=y HTTP/1.1\", host: \"localhost\", referrer: \"http://r/\""), "{line}");
    // 2026/11/21 08:00:00 [error] PID#TID: *NUMBER text
    let mut words = line.split(' ');
    assert_eq!(words.next().map(str::len), Some(10), "{line}");
    assert_eq!(words.next().map(str::len), Some(8), "{line}");
    assert!(
        words
            .nth(1)
            .is_some_and(|word| word.ends_with(':') && word.contains('#')),
        "{line}"
    );
    assert!(
        words.next().is_some_and(|word| word.starts_with('*')),
        "{line}"
    );

    server.get("/own");
    server.line("own.log", "/own");
    assert!(
        !server.read("error.log").contains("/own\""),
        "a location's log replaces the outer one"
    );
}

#[test]
fn no_terminal_obeys_what_a_client_puts_into_the_error_log() {
    if skip_on_oracle("nginx writes control bytes as they come") {
        return;
    }
    let syslog = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback is there");
    syslog
        .set_read_timeout(Some(weir_tests::PATIENCE))
        .expect("it is a socket");
    let port = syslog.local_addr().expect("it is bound").port();
    let server = http(&format!(
        "error_log error.log info; error_log stderr info; error_log syslog:server=127.0.0.1:{port} error;
         server {{ listen 127.0.0.1:%%PORT%%; }}"
    ))
    .start();
    let request =
        b"GET /none%1b]0;path%07%0aforged%0d HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
        Referer: a\x1b]0;title\x07 \x7f \x9b31m \xc2\x9b31m \xc3\xa4\tend\r\n\r\n";
    server.raw(request).expect(404);
    let shown = "referrer: \"a\\x1b]0;title\\x07 \\x7f \\x9b31m \\xc2\\x9b31m \u{e4}\tend\"";
    let line = server.line("error.log", shown);
    assert!(
        line.contains("/none\\x1b]0;path\\x07 forged\\x0d"),
        "{line}"
    );
    server.line("stderr", shown);
    let mut datagram = [0; 4096];
    let (length, _) = syslog.recv_from(&mut datagram).expect("a line is sent");
    let told = String::from_utf8_lossy(&datagram[..length]).into_owned();
    assert!(told.contains(shown), "{told}");
    // A head that is refused is told of, too.
    let reply = server.raw(b"GET / HTTP/1.1\r\nHost: a\r\nX\x1b]0;name: value\r\n\r\n");
    reply.expect(400);
    let refused = "client sent invalid header line: \"X\\x1b...\"";
    server.line("error.log", refused);
    for text in [told, server.read("error.log"), server.read("stderr")] {
        assert!(!has_controls(&text), "{text:?}");
    }
}

fn has_controls(text: &str) -> bool {
    text.chars().any(|c| c.is_control() && !"\t\n".contains(c))
}

#[test]
fn no_terminal_obeys_what_stands_in_a_configuration() {
    if skip_on_oracle("nginx writes control bytes as they come") {
        return;
    }
    for text in [
        "fo\x1b]0;title\x07o bar;",
        "root \x1b[2J; root b;",
        "return 200 $a\u{9b}31m;",
        "include \x1b]0;none;",
    ] {
        let finished = whole(&format!(
            "events {{ }}\nhttp {{ access_log off; server {{ {text} }} }}"
        ))
        .test();
        assert_eq!(finished.code, 1, "{text:?}");
        assert!(!has_controls(&finished.stderr), "{:?}", finished.stderr);
    }
}

#[test]
fn the_error_log_may_be_standard_error() {
    let server = http("error_log stderr warn; server { listen 127.0.0.1:%%PORT%%; }").start();
    server.get("/none");
    server.line("stderr", "/none");
}

#[test]
fn logs_go_to_syslog_over_udp() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback is there");
    socket
        .set_read_timeout(Some(weir_tests::PATIENCE))
        .expect("the bound is not zero");
    let port = socket
        .local_addr()
        .expect("a bound socket has an address")
        .port();
    let conf = format!(
        "log_format short '$uri'; access_log off; server {{ listen 127.0.0.1:%%PORT%%;
         location /access {{ access_log syslog:server=127.0.0.1:{port},facility=local3,severity=debug,tag=mark short; return 200; }}
         location /error {{ error_log syslog:server=127.0.0.1:{port},nohostname; }} }}"
    );
    let server = http(&conf).start();
    let mut buffer = [0; 4096];
    let mut receive = || {
        let length = socket.recv(&mut buffer).expect("a datagram comes");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    server.get("/access");
    let line = receive();
    assert!(line.starts_with("<159>"), "local3 is 19, debug 7: {line}");
    assert!(line.ends_with(" mark: /access"), "{line}");
    server.get("/error");
    let line = receive();
    assert!(line.starts_with("<187>"), "local7 is 23, error 3: {line}");
    assert!(line.contains("open() \""), "{line}");
}

#[test]
fn usr1_reopens_the_logs_after_a_rotation() {
    let conf = "log_format short '$uri'; server { listen 127.0.0.1:%%PORT%%; access_log access.log short; return 200; }";
    let server = http(conf).start();
    server.get("/one");
    server.lines("access.log", 1);
    for name in ["access.log", "error.log"] {
        std::fs::rename(server.path(name), server.path(&format!("{name}.1")))
            .expect("the log is there");
    }
    server.signal(Signal::USR1);
    assert!(until(|| server.path("access.log").exists().then_some(())).is_some());
    // The worker follows its master a moment later.
    let moved = until(|| {
        server.get("/two");
        (!server.read("access.log").is_empty()).then_some(())
    });
    assert!(moved.is_some());
    assert!(server.read("access.log.1").starts_with("/one\n"));
    assert!(server.path("error.log").exists());
}

#[test]
fn log_subrequest_and_request_lengths() {
    let conf = "log_format short '$request_length $bytes_sent $connection_requests $pipe'; server { listen 127.0.0.1:%%PORT%%; access_log access.log short; return 200 ok; }";
    let server = http(conf).start();
    let mut connection = server.connect();
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    connection.send(format!("{request}{request}"));
    let length = connection.reply().body.len();
    assert_eq!(length, 2);
    connection.reply();
    let lines = server.lines("access.log", 2);
    let fields: Vec<Vec<&str>> = lines.iter().map(|line| line.split(' ').collect()).collect();
    assert_eq!((fields[0][0], fields[1][0]), ("27", "27"));
    assert_eq!((fields[0][2], fields[1][2]), ("1", "2"));
    assert_eq!((fields[0][3], fields[1][3]), (".", "p"));
    assert_eq!(fields[0][1], fields[1][1]);
}

/// Content that nothing reads is thrown away, and no variable counts it.
#[test]
fn content_that_is_thrown_away_is_not_counted() {
    let server = http(
        "log_format lengths '$request_method $content_length $request_length';
         server { listen 127.0.0.1:%%PORT%%; access_log access.log lengths; }",
    )
    .start();
    let head = "POST /none HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
    server.raw(format!("{head}12345")).expect(404);
    let chunked = "POST /none HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    server
        .raw(format!("{chunked}5\r\n12345\r\n0\r\n\r\n"))
        .expect(404);
    let lines = server.lines("access.log", 2);
    assert_eq!(
        lines,
        [
            format!("POST 5 {}", head.len()),
            format!("POST 0 {}", chunked.len())
        ]
    );
}

/// What was sent in `Connection` is not kept for the log.
#[test]
fn the_log_says_close_whatever_was_sent() {
    let server = http(
        "log_format sent '$sent_http_connection $sent_http_keep_alive';
         server { listen 127.0.0.1:%%PORT%%; access_log access.log sent; keepalive_timeout 9s 9s; return 200 a; }",
    )
    .start();
    let mut connection = server.connect();
    let reply = connection.get("/");
    assert_eq!(reply.field("Connection"), "keep-alive");
    assert_eq!(reply.field("Keep-Alive"), "timeout=9");
    connection.get("/");
    assert_eq!(server.lines("access.log", 2), ["close -", "close -"]);
}

/// `$body_bytes_sent` is what followed the head on the wire, with the sizes of chunks.
#[test]
fn the_sizes_of_chunks_count_as_sent() {
    let server = http(
        "log_format sent $body_bytes_sent;
         server { listen 127.0.0.1:%%PORT%%; access_log access.log sent; ssi on; }",
    )
    .file("html/a.html", "12345")
    .start();
    let reply = server.get("/a.html");
    assert!(reply.chunked);
    // 5 CR LF 12345 CR LF, and 0 CR LF CR LF.
    assert_eq!(server.lines("access.log", 1), ["15"]);
}

#[test]
fn a_line_of_the_error_log_says_what_was_being_done() {
    let origin = Scripted::start(|stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(
            stream,
            "HTTP/1.1 200 OK\r\nX-Accel-Redirect: @nowhere\r\n\r\n",
        );
    });
    let conf = "
        error_log error.log warn;
        upstream group { server 127.0.0.1:1; server 127.0.0.1:2 backup; }
        server {
            listen 127.0.0.1:%%PORT%%;
            location /asked { auth_request /denied; }
            location = /denied { proxy_pass http://127.0.0.1:1; }
            location /group { proxy_pass http://group; }
            location /page { ssi on; ssi_types *; }
            location /named { proxy_pass http://127.0.0.1:ORIGIN; }
        }"
    .replace("ORIGIN", &origin.port().to_string());
    let server = http(&conf)
        .file("html/page", "<!--#endif -->")
        .file("html/asked", "")
        .start();
    for (path, status, line) in [
        (
            "/asked",
            500,
            "auth request unexpected status: 502 while sending to client, client: ",
        ),
        (
            "/group",
            502,
            "upstream server temporarily disabled while connecting to upstream, client: ",
        ),
        (
            "/page",
            200,
            "invalid context of SSI command: \"endif\" while sending response to client, client: ",
        ),
        (
            "/named",
            500,
            "could not find named location \"@nowhere\" while reading response header from upstream, client: ",
        ),
        // It is forgotten with the path for which it was done.
        (
            "/none",
            404,
            "failed (2: No such file or directory), client: ",
        ),
    ] {
        server.get(path).expect(status);
        server.line("error.log", line);
    }
}

#[test]
fn a_request_without_a_response_is_logged_with_no_length() {
    let conf = "
        log_format sent '$status $sent_http_connection [$sent_http_content_length]';
        server {
            listen 127.0.0.1:%%PORT%%;
            access_log access.log sent;
            return 444;
        }";
    let server = http(conf).start();
    server.raw_or_closed("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    server.raw_or_closed("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(
        server.lines("access.log", 2),
        ["444 keep-alive [-]", "444 close [-]"]
    );
}
