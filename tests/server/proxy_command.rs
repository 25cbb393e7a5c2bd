//! `weir proxy URL`: a caching reverse proxy without a configuration. nginx has no such command.

use rcgen::{CertificateParams, KeyPair};
use weir_tests::{Scripted, Server, Site, http, read_until, run, send, skip_on_oracle};

const WHY: &str = "nginx has no `proxy`";

/// A certificate for the loopback address, signed by itself.
fn with_certificate(site: Site) -> Site {
    let key = KeyPair::generate().expect("random bytes");
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let params = CertificateParams::new(names).expect("names of a host");
    let certificate = params.self_signed(&key).expect("a key that signs");
    site.file("own.crt", certificate.pem())
        .file("own.key", key.serialize_pem())
}

/// An origin that speaks TLS, and its certificate.
fn secure_origin() -> Server {
    with_certificate(http(
        "server {
            listen 127.0.0.1:%%PORT%% ssl;
            ssl_certificate own.crt;
            ssl_certificate_key own.key;
            add_header Set-Cookie 'a=b; Domain=127.0.0.1';
            location / { return 200 '$scheme $ssl_server_name $http_host'; }
            location /moved { return 302 https://$http_host/there; }
        }",
    ))
    .start()
}

#[test]
fn requests_say_where_they_come_from() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = Scripted::start(|stream, _| {
        let head = read_until(stream, b"\r\n\r\n");
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", head.len());
        send(stream, [answer.as_bytes(), &head].concat());
    });
    let port = origin.port();
    let server = http("").proxy(&format!("http://127.0.0.1:{port}"), &["--port", "%%PORT%%"]);
    let head = server.get("/a?b").text();
    for line in [
        "GET /a?b HTTP/1.1".to_owned(),
        format!("Host: 127.0.0.1:{port}"),
        "X-Forwarded-For: 127.0.0.1".to_owned(),
        "X-Forwarded-Host: localhost".to_owned(),
        "X-Forwarded-Proto: http".to_owned(),
    ] {
        assert!(
            head.lines().any(|sent| sent == line),
            "no {line:?} in\n{head}"
        );
    }
}

#[test]
fn what_may_be_kept_is_asked_for_once_and_the_log_says_so() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = Scripted::start(|stream, _| {
        let head = read_until(stream, b"\r\n\r\n");
        let lifetime = match head.starts_with(b"GET /kept ") {
            true => "Cache-Control: max-age=600\r\n",
            false => "",
        };
        let head =
            format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n{lifetime}\r\n");
        send(stream, [head.as_bytes(), b"ok"].concat());
    });
    let url = format!("http://127.0.0.1:{}", origin.port());
    let server = http("").proxy(&url, &["--port", "%%PORT%%"]);
    for _ in 0..3 {
        assert_eq!(server.get("/kept").text(), "ok");
    }
    assert_eq!(origin.connections(), 1);
    assert!(server.get("/kept").field("Cache-Status").contains("; hit"));
    assert_eq!(
        server.get("/other").text() + &server.get("/other").text(),
        "okok"
    );
    assert_eq!(origin.connections(), 3);
    server.line("stdout", "s HIT");
    server.line("stdout", "s MISS");
}

#[test]
fn a_socket_that_changes_its_protocol_passes_the_cache_by() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = Scripted::start(|stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(
            stream,
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n",
        );
        let said = read_until(stream, b"\n");
        send(stream, said);
    });
    let url = format!("http://127.0.0.1:{}", origin.port());
    let server = http("").proxy(&url, &["--port", "%%PORT%%"]);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello\n");
    let received = String::from_utf8_lossy(&client.rest()).into_owned();
    assert!(received.starts_with("HTTP/1.1 101 "), "{received}");
    assert!(received.ends_with("\r\n\r\nhello\n"), "{received}");
}

#[test]
fn an_https_origin_must_be_known_or_be_believed_on_purpose() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = secure_origin();
    let port = origin.port(0);
    let trust = origin.read("own.crt");
    for (url, trusted, options, status) in [
        (format!("https://127.0.0.1:{port}"), false, &[][..], 502),
        (
            format!("https://127.0.0.1:{port}"),
            false,
            &["--insecure"][..],
            200,
        ),
        (format!("https://127.0.0.1:{port}"), true, &[][..], 200),
        (format!("https://localhost:{port}"), true, &[][..], 200),
    ] {
        let bundle = if trusted { trust.clone() } else { stranger() };
        let mut arguments = vec!["--port", "%%PORT%%"];
        arguments.extend(options);
        let server = http("")
            .file("trust.pem", bundle)
            .environment("SSL_CERT_FILE", "%%DIR%%/trust.pem")
            .proxy(&url, &arguments);
        let reply = server.get("/").expect(status);
        if status == 200 {
            let host = url.trim_start_matches("https://");
            let name = host
                .split(':')
                .next()
                .expect("one part")
                .replace("127.0.0.1", "");
            assert_eq!(reply.text(), format!("https {name} {host}"));
            assert!(server.get("/moved").field("Location").ends_with("/there"));
        } else {
            server.line("stderr", "certificate");
        }
    }
}

/// A certificate of somebody else.
fn stranger() -> String {
    let key = KeyPair::generate().expect("random bytes");
    let params = CertificateParams::new(vec!["other.example".to_owned()]).expect("a host name");
    params.self_signed(&key).expect("a key that signs").pem()
}

#[test]
fn what_is_no_origin_is_told() {
    if skip_on_oracle(WHY) {
        return;
    }
    for (arguments, told) in [
        (&["proxy"][..], "missing argument URL"),
        (&["proxy", "ftp://a"][..], "use http or https"),
        (&["proxy", ":"], "is not a URL"),
        (&["proxy", "70000"], "is not a port number"),
        (&["proxy", "nonsense"], "host \"nonsense\" not found"),
        (&["proxy", "http://a b"][..], "is not a URL"),
        (&["proxy", "a", "--porte", "1"][..], "usage: weir proxy URL"),
    ] {
        let refused = run(arguments);
        assert_eq!(refused.code, 1, "{arguments:?}");
        assert!(refused.stderr.contains(told), "{}", refused.stderr);
        assert!(
            !refused.stderr.contains("(weir proxy)"),
            "{}",
            refused.stderr
        );
    }
    let page = run(&["proxy", "--help"]);
    assert_eq!(page.code, 0);
    assert!(page.stdout.contains("--insecure"), "{}", page.stdout);
}

#[test]
fn a_port_of_this_machine_is_enough() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = Scripted::start(|stream, _| {
        let head = read_until(stream, b"\r\n\r\n");
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", head.len());
        send(stream, [answer.as_bytes(), &head].concat());
    });
    let port = origin.port();
    for url in [
        format!("{port}"),
        format!(":{port}"),
        format!("localhost:{port}"),
    ] {
        let server = http("").proxy(&url, &["--port", "%%PORT%%"]);
        let head = server.get("/").expect(200).text();
        assert!(
            head.contains(&format!("Host: localhost:{port}\r\n")),
            "{url}: {head}"
        );
        server.line("stderr", &format!("Proxying http://localhost:{port} at "));
    }
}

#[test]
fn the_log_says_why_an_answer_was_not_kept() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = Scripted::start(|stream, _| {
        let head = read_until(stream, b"\r\n\r\n");
        let path = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        let fields = match path {
            b"/cookie" => "Set-Cookie: a=b\r\nCache-Control: max-age=60\r\n",
            b"/private" => "Cache-Control: private, max-age=60\r\n",
            b"/star" => "Vary: *\r\nCache-Control: max-age=60\r\n",
            b"/kept" => "Cache-Control: max-age=60\r\n",
            _ => "",
        };
        let head =
            format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n{fields}\r\n");
        send(stream, [head.as_bytes(), b"ok"].concat());
    });
    let url = format!("http://127.0.0.1:{}", origin.port());
    let server = http("").proxy(&url, &["--port", "%%PORT%%"]);
    for (target, why) in [
        ("/cookie", "MISS (Set-Cookie)"),
        ("/private", "MISS (Cache-Control: private)"),
        ("/star", "MISS (Vary: *)"),
        ("/plain", "MISS (neither Cache-Control nor Expires)"),
    ] {
        server.get(target);
        let line = server.line("stdout", &format!(" {target} "));
        assert!(line.ends_with(why), "{line}");
    }
    server.get("/kept");
    let line = server.line("stdout", " /kept ");
    assert!(line.ends_with("s MISS"), "{line}");
    server.request("POST", "/post", &["Content-Length: 0"]);
    let line = server.line("stdout", " /post ");
    assert!(line.ends_with("(POST is not cached)"), "{line}");
}
