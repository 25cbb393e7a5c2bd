//! `proxy_http_version 3`: requests to servers over HTTP/3. The server behind is another one of the same configuration, or one
//! that speaks no QUIC. nginx has no such thing.

use weir_tests::{Server, Site, http, skip_on_oracle};

use crate::proxy_ssl::with_certificates;

const WHY: &str = "nginx speaks no HTTP/3 to servers";

/// A server behind, with QUIC at its port.
const ORIGIN: &str = "
    server {
        listen 127.0.0.1:%%PORT1%% quic;
        listen 127.0.0.1:%%PORT1%% ssl;
        ssl_certificate origin.crt; ssl_certificate_key origin.key;
        ssl_client_certificate ca.crt; ssl_verify_client optional;
        client_max_body_size 0;
        root html;
        location / { return 200 '$server_protocol $request_method $host $request_uri $http_x_more $ssl_client_s_dn'; }
        location /connection { return 200 '$connection $connection_requests'; }
        location /files/ { alias html/; }
        location /none { return 204; }
        location /length { proxy_http_version 1.1; proxy_pass http://127.0.0.1:%%PORT2%%; proxy_set_header X $content_length; }
        location /hints { add_header Link '</a>' always; return 200 late; }
    }
    server { listen 127.0.0.1:%%PORT2%%; client_max_body_size 0; location / { return 200 $http_x; } }
    server { listen 127.0.0.1:%%PORT3%% ssl; ssl_certificate origin.crt; ssl_certificate_key origin.key; }
";

fn site(locations: &str) -> Site {
    with_certificates(http(&format!(
        "upstream kept {{ server 127.0.0.1:%%PORT1%%; keepalive 4; }}
         upstream one_dead {{ server 127.0.0.1:%%PORT3%%; server 127.0.0.1:%%PORT1%% backup; }}
         proxy_http_version 3; client_max_body_size 0;
         server {{ listen 127.0.0.1:%%PORT%%; {locations} }} {ORIGIN}"
    )))
}

#[test]
fn requests_of_all_kinds_and_their_responses() {
    if skip_on_oracle(WHY) {
        return;
    }
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let server = site(
        "location / { proxy_pass https://kept; proxy_set_header X-More more; }
         location /streamed/ { proxy_pass https://kept/; proxy_request_buffering off; proxy_buffering off; }
         location /body/ { proxy_pass https://kept/; proxy_method POST; proxy_set_body 'twelve bytes'; }",
    )
    .file("html/big", &content)
    .file("html/empty", "")
    .start();
    let answer = "HTTP/3.0 GET kept /a?b more ";
    assert_eq!(server.get("/a?b").expect(200).text(), answer);
    assert!(server.get("/files/big").expect(200).body == content);
    assert!(server.get("/streamed/files/big").expect(200).body == content);
    assert_eq!(server.get("/files/empty").expect(200).text(), "");
    server.get("/files/missing").expect(404);
    server.get("/none").expect(204);
    let head = server.request("HEAD", "/files/big", &[]).expect(200);
    assert_eq!(head.field("Content-Length"), "3000000");
    let part = server.get_with("/files/big", &["Range: bytes=5-9"]);
    assert_eq!(part.expect(206).body, &content[5..10]);
    assert_eq!(server.get("/body/length").expect(200).text(), "12");
    for path in ["/length", "/streamed/length"] {
        let mut post = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            content.len()
        )
        .into_bytes();
        post.extend_from_slice(&content);
        assert_eq!(server.raw(post).expect(200).text(), "3000000", "{path}");
    }
}

#[test]
fn a_connection_is_used_again() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site(
        "location / { proxy_pass https://kept; }
         location /fresh/ { proxy_pass https://127.0.0.1:%%PORT1%%/; }",
    )
    .start();
    let first = server.get("/connection").expect(200).text();
    let number = first.split(' ').next().expect("a number").to_owned();
    for request in 2..20 {
        let answer = server.get("/connection").expect(200).text();
        assert_eq!(answer, format!("{number} {request}"));
    }
    // Without `keepalive` there is one for each request.
    let fresh = |_| server.get("/fresh/connection").expect(200).text();
    let fresh: Vec<String> = (0..3).map(fresh).collect();
    assert!(
        fresh.iter().all(|answer| answer.ends_with(" 1")),
        "{fresh:?}"
    );
    assert_ne!(fresh[0], fresh[1]);
}

/// The one line that was logged.
fn error(server: &Server, text: &str) {
    let line = server.line("error.log", text);
    assert!(line.contains(" to upstream, client: "), "{line}");
}

#[test]
fn certificates_are_judged_as_over_tcp() {
    if skip_on_oracle(WHY) {
        return;
    }
    let verify = "proxy_ssl_verify on; proxy_ssl_trusted_certificate";
    let server = site(&format!(
        "location /good {{ proxy_pass https://kept; {verify} ca.crt; proxy_ssl_name a.example; }}
         location /name {{ proxy_pass https://kept; {verify} ca.crt; proxy_ssl_name b.example; }}
         location /other {{ proxy_pass https://kept; {verify} other.crt; proxy_ssl_name a.example; }}
         location /client {{ proxy_pass https://kept; proxy_ssl_certificate client.crt; proxy_ssl_certificate_key client.key; }}
         location /old {{ proxy_pass https://kept; proxy_ssl_protocols TLSv1.2; }}"
    ))
    .start();
    let answer = server.get("/good").expect(200).text();
    assert!(answer.starts_with("HTTP/3.0 GET kept /good"), "{answer}");
    server.get("/name").expect(502);
    error(
        &server,
        "upstream SSL certificate does not match \"b.example\"",
    );
    server.get("/other").expect(502);
    error(&server, "upstream SSL certificate verify error: (");
    let answer = server.get("/client").expect(200).text();
    assert!(answer.ends_with(" CN=client.example"), "{answer}");
    server.get("/old").expect(500);
    error(&server, "QUIC needs TLS 1.3");
}

#[test]
fn a_server_without_quic_is_not_waited_for() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site(
        "location /dead { proxy_pass https://127.0.0.1:%%PORT3%%; }
         location /next { proxy_pass https://one_dead; }
         location /plain { set $scheme_of http; proxy_pass $scheme_of://127.0.0.1:%%PORT2%%; }",
    )
    .start();
    server.get("/dead").expect(502);
    error(&server, "nobody listens for QUIC at the upstream's port");
    let answer = server.get("/next").expect(200).text();
    assert!(answer.starts_with("HTTP/3.0 GET one_dead"), "{answer}");
    server.get("/plain").expect(500);
    error(&server, "HTTP/3 needs an https:// URL");
}

#[test]
fn a_url_without_tls_is_an_error_of_the_configuration() {
    if skip_on_oracle(WHY) {
        return;
    }
    let finished = site("location / { proxy_pass http://127.0.0.1:%%PORT2%%; }").test();
    assert_eq!(finished.code, 1, "{}", finished.stderr);
    let text = "\"proxy_http_version 3\" needs an \"https://\" URL";
    assert!(finished.stderr.contains(text), "{}", finished.stderr);
}
