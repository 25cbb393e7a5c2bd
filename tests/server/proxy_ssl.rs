//! TLS to upstream servers: `https` in `proxy_pass`, `proxy_ssl` in stream, and what goes wrong there. The origin is
//! another server of the same configuration.

use std::io::Read;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use weir_tests::{Scripted, Server, Site, http, is_oracle, skip_on_oracle, whole};

/// The files that configurations here name: an authority, the origin's certificate for `a.example`, and a client's.
pub(crate) fn with_certificates(site: Site) -> Site {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, "authority");
    let key = KeyPair::generate().expect("random bytes");
    let authority = CertifiedIssuer::self_signed(params, key).expect("a key that signs");
    let mut site = site.file("ca.crt", authority.pem());
    for (file, name) in [("origin", "a.example"), ("client", "client.example")] {
        let key = KeyPair::generate().expect("random bytes");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a host name");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params
            .signed_by(&key, &authority)
            .expect("a key that signs");
        site = site
            .file(&format!("{file}.crt"), certificate.pem())
            .file(&format!("{file}.key"), key.serialize_pem());
    }
    let key = KeyPair::generate().expect("random bytes");
    let other = CertificateParams::new(vec!["other".to_owned()]).expect("a host name");
    let other = other.self_signed(&key).expect("a key that signs");
    site.file("other.crt", other.pem())
}

/// What the origin says of the TLS that it was spoken to by.
const ORIGIN: &str = "
    server {
        listen 127.0.0.1:%%PORT1%% ssl;
        ssl_certificate origin.crt;
        ssl_certificate_key origin.key;
        ssl_client_certificate ca.crt;
        ssl_verify_client optional;
        ssl_protocols TLSv1.2 TLSv1.3;
        location / { return 200 '$ssl_protocol $ssl_server_name $ssl_client_s_dn $request_uri'; }
        location /connection { return 200 $connection; }
        location /resumed { keepalive_timeout 0; return 200 $ssl_session_reused; }
        location /file { root html; }
        location /length { client_max_body_size 0; proxy_pass http://127.0.0.1:%%PORT2%%; }
    }
    server {
        listen 127.0.0.1:%%PORT2%%;
        client_max_body_size 0;
        location / { proxy_pass http://127.0.0.1:%%PORT3%%; proxy_set_header X $content_length; }
    }
    server { listen 127.0.0.1:%%PORT3%%; client_max_body_size 0; location / { return 200 $http_x; } }
";

fn site(locations: &str) -> Site {
    with_certificates(http(&format!(
        "upstream u {{ server 127.0.0.1:%%PORT1%%; }}
         upstream kept {{ server 127.0.0.1:%%PORT1%%; keepalive 4; }}
         proxy_http_version 1.1; proxy_set_header Connection ''; proxy_ssl_protocols TLSv1.2 TLSv1.3;
         server {{ listen 127.0.0.1:%%PORT%%; client_max_body_size 0; {locations} }} {ORIGIN}"
    )))
}

/// The one error that was logged.
fn error(server: &Server, text: &str) {
    let line = server.line("error.log", text);
    assert!(
        line.contains(" while SSL handshaking to upstream, client: "),
        "{line}"
    );
}

#[test]
fn names_certificates_and_versions_are_as_configured() {
    let server = site(
        "location /plain/ { proxy_pass https://u/; }
         location /port/ { proxy_pass https://127.0.0.1:%%PORT1%%/; }
         location /name/ { proxy_pass https://u/; proxy_ssl_server_name on; proxy_ssl_name a.example:443; }
         location /client/ { proxy_pass https://u/; proxy_ssl_session_reuse off; proxy_ssl_certificate client.crt; proxy_ssl_certificate_key client.key; }
         location /var/ { set $scheme_of https; proxy_pass $scheme_of://u/var; proxy_ssl_name $arg_n; proxy_ssl_server_name on; }
         location /old/ { proxy_pass https://u/; proxy_ssl_protocols TLSv1.2; }",
    )
    .start();
    for (target, answer) in [
        ("/plain/a", "TLSv1.3   /a"),
        ("/port/a?b", "TLSv1.3   /a?b"),
        ("/name/", "TLSv1.3 a.example  /"),
        ("/client/", "TLSv1.3  CN=client.example /"),
        ("/var/?n=x.example", "TLSv1.3 x.example  /var"),
        ("/old/", "TLSv1.2   /"),
    ] {
        assert_eq!(server.get(target).expect(200).text(), answer, "{target}");
    }
}

#[test]
fn a_server_is_what_its_certificate_says_or_there_is_no_answer() {
    let verify = match is_oracle() {
        // nginx resumes a session that another location found good, and does not look at the certificate again.
        true => "proxy_ssl_session_reuse off; proxy_ssl_verify on; proxy_ssl_trusted_certificate",
        false => "proxy_ssl_verify on; proxy_ssl_trusted_certificate",
    };
    let server = site(&format!(
        "location /good {{ proxy_pass https://u/; {verify} ca.crt; proxy_ssl_name a.example; }}
         location /name {{ proxy_pass https://u/; {verify} ca.crt; proxy_ssl_name b.example; }}
         location /host {{ proxy_pass https://u/; {verify} ca.crt; }}
         location /trust {{ proxy_pass https://u/; {verify} other.crt; proxy_ssl_name a.example; }}"
    ))
    .start();
    server.get("/good").expect(200);
    for (target, line) in [
        (
            "/name",
            "upstream SSL certificate does not match \"b.example\"",
        ),
        ("/host", "upstream SSL certificate does not match \"u\""),
        ("/trust", "upstream SSL certificate verify error: ("),
    ] {
        // Not after it was good for another location either.
        server.get("/good").expect(200);
        server.get(target).expect(502);
        error(&server, line);
    }
}

#[test]
fn connections_and_sessions_are_used_again_by_who_may() {
    let server = site(
        "location /keep { proxy_pass https://kept/connection; }
         location /other { proxy_pass https://kept/connection; proxy_ssl_certificate client.crt;
            proxy_ssl_certificate_key client.key; }
         location /resumed { proxy_pass https://u/resumed; }
         location /anew { proxy_pass https://u/resumed; proxy_ssl_session_reuse off; }",
    )
    .start();
    let first = server.get("/keep").expect(200).text();
    for _ in 0..5 {
        assert_eq!(server.get("/keep").text(), first);
    }
    // nginx gives the connection that one client's certificate opened to requests that have another.
    if !is_oracle() {
        assert_ne!(server.get("/other").text(), first);
        assert_eq!(server.get("/keep").text(), first);
    }
    assert_eq!(server.get("/resumed").text(), ".");
    assert_eq!(server.get("/resumed").text(), "r");
    for _ in 0..2 {
        assert_eq!(server.get("/anew").text(), ".");
    }
}

#[test]
fn loops_share_connections_with_tls() {
    if skip_on_oracle("each of its processes keeps its own") {
        return;
    }
    let server = with_certificates(whole(&format!(
        "worker_processes 4; events {{}}
         http {{ upstream u {{ server 127.0.0.1:%%PORT1%%; keepalive 4; }}
            server {{ listen 127.0.0.1:%%PORT%% reuseport; location / {{ proxy_pass https://u/connection; }} }} {ORIGIN} }}"
    )))
    .start();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..60 {
        // Each by a connection of its own, so on any loop.
        seen.insert(server.get("/").expect(200).text());
    }
    // One at a time needs one. A loop that is late is not asked for what it holds.
    assert!(seen.len() <= 5, "{seen:?}");
}

#[test]
fn large_content_goes_through_both_ways() {
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let server = site(
        "location /file { proxy_pass https://u; }
         location /unbuffered/ { proxy_pass https://u/; proxy_buffering off; }
         location /length { proxy_pass https://u; }
         location /streamed/ { proxy_pass https://u/; proxy_request_buffering off; }",
    )
    .file("html/file", &content)
    .start();
    for target in ["/file", "/unbuffered/file"] {
        assert!(server.get(target).expect(200).body == content, "{target}");
    }
    for target in ["/length", "/streamed/length"] {
        let mut connection = server.connect();
        connection.request("POST", target, &["Content-Length: 3000000"]);
        connection.send(&content);
        assert_eq!(connection.reply().expect(200).text(), "3000000", "{target}");
    }
}

#[test]
fn what_is_no_tls_is_a_bad_gateway() {
    let garbage = Scripted::start(|stream, _| {
        let _ = stream.read(&mut [0; 100]);
        weir_tests::send(stream, "HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let closing = Scripted::start(|stream, _| drop(stream.read(&mut [0; 10_000])));
    let silent = Scripted::start(
        |stream, _| {
            while matches!(stream.read(&mut [0; 10_000]), Ok(1..)) {}
        },
    );
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%;
            location /garbage {{ proxy_pass https://127.0.0.1:{}; }}
            location /closing {{ proxy_pass https://127.0.0.1:{}; }}
            location /silent {{ proxy_pass https://127.0.0.1:{}; proxy_connect_timeout 300ms; }} }}",
        garbage.port(),
        closing.port(),
        silent.port()
    ))
    .start();
    for (target, status, line) in [
        (
            "/garbage",
            502,
            "SSL_do_handshake() failed (SSL: error:0A00010B:SSL routines::wrong version number",
        ),
        ("/closing", 502, "peer closed connection in SSL handshake"),
        (
            "/silent",
            504,
            "upstream timed out (110: Connection timed out)",
        ),
    ] {
        server.get(target).expect(status);
        if !is_oracle() {
            error(&server, line);
        }
    }
}

#[test]
fn a_certificate_that_is_not_there_is_said_at_once() {
    for (directives, message) in [
        (
            "proxy_ssl_verify on;",
            "no proxy_ssl_trusted_certificate for proxy_ssl_verify",
        ),
        (
            "proxy_ssl_certificate client.crt;",
            "no \"proxy_ssl_certificate_key\" is defined for certificate \"",
        ),
        (
            "proxy_ssl_certificate none.crt; proxy_ssl_certificate_key none.key;",
            "cannot load certificate \"",
        ),
    ] {
        let finished = with_certificates(http(&format!(
            "server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass https://127.0.0.1:1; {directives} }} }}"
        )))
        .test();
        assert!(finished.stderr.contains(message), "{}", finished.stderr);
    }
    // Settings that nothing uses are not looked at.
    let finished = with_certificates(http(
        "proxy_ssl_verify on;
         server { listen 127.0.0.1:%%PORT%%; location / { proxy_pass http://127.0.0.1:1; } }",
    ))
    .test();
    assert!(
        finished.stderr.contains("test is successful"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_certificate_may_depend_on_the_request() {
    if skip_on_oracle("proxy_ssl_certificate_cache is newer") {
        return;
    }
    let server = site(
        "location / { proxy_pass https://u; proxy_ssl_certificate $arg_c.crt; proxy_ssl_certificate_key $arg_c.key;
            proxy_ssl_certificate_cache max=4; }",
    )
    .tolerate("cannot load certificate")
    .start();
    for _ in 0..2 {
        let answer = server.get("/?c=client").expect(200).text();
        assert!(answer.contains("CN=client.example"), "{answer}");
    }
    server.get("/?c=none").expect(500);
    server.line("error.log", "cannot load certificate \"");
}

#[test]
fn stream_speaks_tls_to_its_servers() {
    if is_oracle() && skip_on_oracle("it may be built without stream") {
        return;
    }
    let server = with_certificates(whole(&format!(
        "events {{}}
         stream {{
            upstream u {{ server 127.0.0.1:%%PORT1%%; }}
            proxy_ssl on;
            server {{ listen 127.0.0.1:%%PORT%%; proxy_pass u; proxy_ssl_server_name on; proxy_ssl_name a.example;
                proxy_ssl_verify on; proxy_ssl_trusted_certificate ca.crt; }}
            server {{ listen 127.0.0.1:%%PORT4%%; proxy_pass u; proxy_ssl_verify on; proxy_ssl_trusted_certificate ca.crt; }}
            server {{ listen 127.0.0.1:%%PORT5%%; proxy_pass u; proxy_ssl_certificate client.crt;
                proxy_ssl_certificate_key client.key; }}
         }}
         http {{ {ORIGIN} }}"
    )))
    .tolerate("does not match")
    .start();
    assert_eq!(server.get("/a").expect(200).text(), "TLSv1.3 a.example  /a");
    let mut connection = server.connect_to(5);
    let answer = connection.get("/").expect(200).text();
    assert_eq!(answer, "TLSv1.3  CN=client.example /");
    assert!(server.connect_to(4).rest().is_empty());
    error(&server, "upstream SSL certificate does not match \"u\"");
}

#[test]
fn health_checks_speak_tls_too() {
    if skip_on_oracle("health_check is of its commercial version") {
        return;
    }
    let server = site(
        "location / { proxy_pass https://u; health_check interval=100ms mandatory; proxy_ssl_verify on;
            proxy_ssl_trusted_certificate ca.crt; proxy_ssl_name a.example; }
         location /bad { proxy_pass https://127.0.0.1:%%PORT1%%; health_check interval=100ms; proxy_ssl_verify on;
            proxy_ssl_trusted_certificate ca.crt; }",
    )
    .tolerate("no live upstreams")
    .start();
    // Unknown until the first check has passed.
    let answered = weir_tests::until(|| (server.get("/").status == 200).then_some(()));
    assert!(answered.is_some());
    let line = server.line("error.log", "is unhealthy");
    assert!(
        line.contains("upstream SSL certificate does not match \"127.0.0.1\""),
        "{line}"
    );
}

/// The lines of a certificate are made by the server, with a tab in front by design: they are no client's.
#[test]
fn the_client_s_certificate_is_passed_on_with_its_lines_under_any_name() {
    let origin = Scripted::start(|stream, _| {
        let head = weir_tests::read_until(stream, b"\r\n\r\n");
        let length = head.len();
        let answer =
            format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        weir_tests::send(stream, [answer.as_bytes(), &head].concat());
    });
    let port = origin.port();
    let server = with_certificates(http(&format!(
        "map $ssl_client_cert $mapped {{ default $ssl_client_cert; }}
         server {{ listen 127.0.0.1:%%PORT%%; location / {{
             proxy_pass https://127.0.0.1:%%PORT1%%;
             proxy_ssl_certificate client.crt; proxy_ssl_certificate_key client.key; }} }}
         server {{ listen 127.0.0.1:%%PORT1%% ssl;
             ssl_certificate origin.crt; ssl_certificate_key origin.key;
             ssl_client_certificate ca.crt; ssl_verify_client on;
             location / {{
                 set $copied $ssl_client_cert;
                 proxy_set_header X-Own $ssl_client_cert;
                 proxy_set_header X-Copied $copied;
                 proxy_set_header X-Mapped $mapped;
                 proxy_pass http://127.0.0.1:{port}; }} }}"
    )))
    .start();
    let text = server.get("/").expect(200).text();
    for name in ["X-Own", "X-Copied", "X-Mapped"] {
        let begin = format!("{name}: -----BEGIN CERTIFICATE-----\n\t");
        assert!(text.contains(&begin), "{name} in {text}");
    }
    assert_eq!(text.matches("\n\t-----END CERTIFICATE-----").count(), 3);
}
