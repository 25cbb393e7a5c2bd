//! What a client sends stays within the line, the key or the value that it was put into on the way to a server behind.

use std::fmt::Write;
use std::io::Read;
use std::net::TcpStream;

use weir_tests::{
    Heard, Http2, Reply, Scripted, Server, Site, http, read_until, send, skip_on_oracle, until,
};

const WHY: &str = "nginx lets clients split requests to upstream";

/// A client's last field, which the server passes on last: what ends a request upstream.
const LAST: &str = "X-Last: end";

/// A server that answers with the bytes of the request as they came.
fn recorder() -> Scripted {
    Scripted::start(|stream, _| {
        let request = read_until(stream, format!("{LAST}\r\n\r\n").as_bytes());
        answer(stream, &request);
    })
}

fn answer(stream: &mut TcpStream, body: &[u8]) {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    send(stream, [head.as_bytes(), body].concat());
}

/// Whether this is one request and nothing else, by the letter of RFC 9112: a request line of three words, then lines
/// without any control but a tab.
fn is_one_request(request: &[u8]) -> bool {
    let Some(head) = request.strip_suffix(b"\r\n\r\n") else {
        return false;
    };
    let text: Vec<u8> = head.to_vec();
    let mut lines = text.split(|&byte| byte == b'\n').map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        (line, line.iter().all(|&byte| !matches!(byte, 0 | b'\r')))
    });
    let (first, clean) = lines.next().expect("split gives one at least");
    let words: Vec<_> = first.split(|&byte| byte == b' ').collect();
    let visible = first.iter().all(|&byte| byte >= b' ' && byte != 0x7f);
    clean
        && visible
        && words.len() == 3
        && words[2].starts_with(b"HTTP/1.")
        && lines.all(|(line, clean)| clean && line.contains(&b':') && line[0] > b' ')
}

/// All bytes, as they stand in a path.
fn bytes() -> impl Iterator<Item = (u8, String)> {
    (0..=255).map(|byte| (byte, format!("%{byte:02x}")))
}

fn get(server: &Server, target: &str) -> Reply {
    server.get_with(target, &[LAST])
}

fn base64(text: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for piece in text.chunks(3) {
        let number = (0..3).fold(0, |n, i| {
            n << 8 | u32::from(piece.get(i).copied().unwrap_or(0))
        });
        for i in 0..4 {
            let sign = LETTERS[(number >> (18 - 6 * i)) as usize & 63] as char;
            out.push(if i <= piece.len() { sign } else { '=' });
        }
    }
    out
}

fn http_site(origin: &Scripted) -> Site {
    let upstream = format!("http://127.0.0.1:{}", origin.port());
    http(&format!(
        "map $uri $mapped {{ default $uri; }}
        server {{
            listen 127.0.0.1:%%PORT%%;
            location /set/ {{ proxy_set_header X-U \"<$uri>\"; proxy_pass {upstream}/fixed; }}
            location /map/ {{ proxy_set_header X-U $mapped; proxy_pass {upstream}/fixed; }}
            location ~ (?s)^/capture/(?<named>.*)$ {{
                set $copied $named;
                proxy_set_header X-U \"$copied $1\";
                proxy_pass {upstream};
            }}
            location /host/ {{ proxy_set_header Host $uri; proxy_pass {upstream}/fixed; }}
            location /method/ {{ proxy_method $uri; proxy_pass {upstream}/fixed; }}
            location /user/ {{ proxy_set_header X-U $remote_user; proxy_pass {upstream}/fixed; }}
            location /url/ {{ proxy_pass {upstream}$uri; }}
            location /rewritten/ {{ rewrite ^/rewritten(.*)$ $1 break; proxy_pass {upstream}; }}
            location /args/ {{ rewrite ^ /x?q=$uri? break; proxy_pass {upstream}; }}
            location /plain/ {{ proxy_pass {upstream}/; }}
            location /as-sent/ {{ proxy_pass {upstream}; }}
            location /jump/ {{ try_files /nothing /args-of?$uri; }}
            location /args-of {{ proxy_pass {upstream}; }}
        }}"
    ))
}

#[test]
fn no_byte_of_a_path_splits_a_request_to_an_http_server() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = recorder();
    let server = http_site(&origin).start();
    for (byte, escaped) in bytes().skip(1) {
        for place in ["set", "map", "capture", "host", "method"] {
            let reply = get(&server, &format!("/{place}/a{escaped}b"));
            let refused = matches!(byte, b'\r' | b'\n') || byte == b' ' && place == "method";
            let what = format!("{place} {escaped}: {}", reply.text());
            assert_eq!(reply.status, if refused { 400 } else { 200 }, "{what}");
            assert!(
                refused || is_one_request(&reply.body) || byte < b' ' || byte == 0x7f,
                "{what}"
            );
        }
        for place in ["url", "rewritten", "args", "plain", "as-sent", "jump"] {
            let reply = get(&server, &format!("/{place}/a{escaped}b"));
            let what = format!("{place} {escaped}: {}", reply.text());
            assert_eq!(reply.status, 200, "{what}");
            assert!(is_one_request(&reply.body), "{what}");
        }
        let user = base64(&[b'u', byte, b'v', b':', b'p']);
        let authorization = format!("Authorization: Basic {user}");
        let reply = server.get_with("/user/", &[&authorization, LAST]);
        let refused = matches!(byte, b'\r' | b'\n');
        assert_eq!(
            reply.status,
            if refused { 400 } else { 200 },
            "user {escaped}"
        );
    }
    let user = format!("Authorization: Basic {}", base64(b"u\0v:p"));
    assert_eq!(server.get_with("/user/", &[&user, LAST]).status, 400);
}

#[test]
fn the_request_that_was_smuggled_is_refused_and_the_directive_named() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = recorder();
    let server = http_site(&origin).start();
    let smuggled = "%0d%0aContent-Length:%200%0d%0a%0d%0aGET%20/SMUGGLED%20HTTP/1.1%0d%0aHost:%20x";
    for (place, directive) in [
        ("set", "proxy_set_header X-U"),
        ("host", "proxy_set_header Host"),
        ("method", "proxy_method"),
    ] {
        let reply = get(&server, &format!("/{place}/x{smuggled}"));
        assert_eq!(reply.status, 400);
        let line = format!("client sent a CR in what \"{directive}\" would send to upstream");
        server.line("error.log", &line);
    }
    assert_eq!(origin.connections(), 0);
    let reply = get(&server, &format!("/url/x{smuggled}"));
    let escaped = "GET /url/x%0D%0AContent-Length:%200%0D%0A%0D%0AGET%20/SMUGGLED%20HTTP/1.1%0D%0AHost:%20x HTTP/1.1\r\n";
    assert!(reply.text().starts_with(escaped), "{}", reply.text());
    // What is escaped already is not escaped again.
    let reply = get(&server, "/url/%2541");
    assert!(
        reply.text().starts_with("GET /url/%41 HTTP"),
        "{}",
        reply.text()
    );
}

#[test]
fn what_the_configuration_itself_writes_in_several_lines_is_sent() {
    let origin = recorder();
    let port = origin.port();
    let server = http(&format!(
        "map $request_method $folded {{ default \"one\r\n\ttwo\"; }}
        server {{
            listen 127.0.0.1:%%PORT%%;
            location / {{
                set $own \"three\r\n\tfour\";
                proxy_set_header X-A \"$http_x_client five\r\n\tsix\";
                proxy_set_header X-B $folded;
                proxy_set_header X-C $own;
                proxy_pass http://127.0.0.1:{port};
            }}
        }}"
    ))
    .start();
    let reply = server.get_with("/", &["X-Client: c", LAST]);
    let text = reply.expect(200).text();
    for line in [
        "X-A: c five\r\n\tsix\r\n",
        "X-B: one\r\n\ttwo\r\n",
        "X-C: three\r\n\tfour\r\n",
    ] {
        assert!(text.contains(line), "{line:?} in {text:?}");
    }
}

#[test]
fn subrequests_do_not_split_either() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = recorder();
    let server = http(&format!(
        "server {{
            listen 127.0.0.1:%%PORT%%;
            location /authenticated/ {{ set $asked $uri; auth_request /aside; empty_gif; }}
            location /mirrored/ {{ set $asked $uri; mirror /aside; empty_gif; }}
            location = /aside {{
                internal;
                proxy_set_header X-U $asked;
                proxy_pass http://127.0.0.1:{port};
            }}
        }}",
        port = origin.port()
    ))
    .start();
    // As nginx says of a status that it does not expect of a subrequest.
    assert_eq!(get(&server, "/authenticated/a%0d%0ab").status, 500);
    let line = "what \"proxy_set_header X-U\" would send to upstream";
    server.line("error.log", line);
    assert_eq!(get(&server, "/mirrored/a%0d%0ab").status, 200);
    until(|| (server.read("error.log").matches(line).count() == 2).then_some(()));
    assert_eq!(server.read("error.log").matches(line).count(), 2);
    assert_eq!(origin.connections(), 0);
}

#[test]
fn no_byte_of_a_path_ends_metadata_or_the_target_of_http2() {
    if skip_on_oracle(
        "nginx sends CR and LF in fields of HTTP/2; 1.22 speaks it to gRPC servers only",
    ) {
        return;
    }
    let origin = Scripted::start(|stream, _| {
        let mut origin = Http2::accept(stream);
        loop {
            match origin.hear(|heard| heard.stream().is_some() || *heard == Heard::Closed) {
                Heard::Headers { stream, fields, .. } => {
                    let clean =
                        |text: &str| text.bytes().all(|byte| !matches!(byte, 0 | b'\r' | b'\n'));
                    let target = fields.iter().filter(|(name, _)| name == ":path");
                    let good = fields.iter().all(|(_, value)| clean(value))
                        && target.clone().count() == 1
                        && target
                            .clone()
                            .all(|(_, path)| path.bytes().all(|byte| byte > b' ' && byte != 0x7f));
                    let status = if good { "200" } else { "418" };
                    origin.headers(stream, &[(":status", status)], true);
                }
                Heard::Closed => return,
                _ => {}
            }
        }
    });
    let port = origin.port();
    let server = http(&format!(
        "server {{
            listen 127.0.0.1:%%PORT%%;
            location /set/ {{
                proxy_http_version 2; proxy_set_header X-U $uri; proxy_pass http://127.0.0.1:{port}/;
            }}
            location /url/ {{ proxy_http_version 2; proxy_pass http://127.0.0.1:{port}$uri; }}
            location /grpc/ {{ grpc_set_header X-U $uri; grpc_pass 127.0.0.1:{port}; }}
            location /grpc-args/ {{ rewrite ^ /x?q=$uri? break; grpc_pass 127.0.0.1:{port}; }}
        }}"
    ))
    .start();
    for (byte, escaped) in bytes().skip(1) {
        for place in ["set", "grpc"] {
            let status = server.get(&format!("/{place}/a{escaped}b")).status;
            let refused = matches!(byte, b'\r' | b'\n');
            assert_eq!(status, if refused { 400 } else { 200 }, "{place} {escaped}");
        }
        for place in ["url", "grpc-args"] {
            let status = server.get(&format!("/{place}/a{escaped}b")).status;
            assert_eq!(status, 200, "{place} {escaped}");
        }
    }
    server.line("error.log", "what \"grpc_set_header X-U\" would send");
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[test]
fn values_with_a_length_keep_every_byte_and_those_with_an_end_lose_none() {
    if skip_on_oracle("nginx sends a NUL in the middle of a value to SCGI servers") {
        return;
    }
    // The last param of each protocol is the client's last field.
    let application = Scripted::start(|stream, _| {
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        while !String::from_utf8_lossy(&request).contains("HTTP_X_LAST") {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => request.extend_from_slice(&buffer[..count]),
            }
        }
        let text = hexadecimal(&request);
        send(
            stream,
            format!("Status: 200\r\nContent-Type: text/plain\r\n\r\n{text}"),
        );
    });
    let port = application.port();
    let server = http(&format!(
        "server {{
            listen 127.0.0.1:%%PORT%%;
            location /uwsgi/ {{ uwsgi_param U $remote_user; uwsgi_pass 127.0.0.1:{port}; }}
            location /scgi/ {{ scgi_param SCGI 1; scgi_param U $remote_user; scgi_pass 127.0.0.1:{port}; }}
        }}"
    ))
    .start();
    for byte in 0..=255 {
        let user = base64(&[b'u', byte, b'v', b':', b'p']);
        let authorization = format!("Authorization: Basic {user}");
        let value = format!("75{byte:02x}76");
        for (place, before, after) in [("uwsgi", "0100550300", ""), ("scgi", "5500", "00")] {
            let reply = server.get_with(&format!("/{place}/"), &[&authorization, LAST]);
            if byte == 0 && place == "scgi" {
                assert_eq!(reply.status, 400);
                continue;
            }
            if byte == b':' {
                continue;
            }
            let value = format!("{before}{value}{after}");
            assert!(
                reply.text().contains(&value),
                "{place} {value} in {}",
                reply.text()
            );
        }
    }
    server.line(
        "error.log",
        "client sent a NUL in what \"scgi_param U\" would send to upstream",
    );
}

#[test]
fn no_byte_of_a_path_ends_a_key_of_memcached() {
    let cache = Scripted::start(|stream, _| {
        let request = read_until(stream, b"\r\n");
        let text = hexadecimal(&request);
        let key = request.strip_prefix(b"get ").unwrap_or_default();
        let key = key.strip_suffix(b"\r\n").unwrap_or_default();
        let head = [b"VALUE ", key, format!(" 0 {}\r\n", text.len()).as_bytes()].concat();
        send(stream, [&head, text.as_bytes(), b"\r\nEND\r\n"].concat());
    });
    let server = http(&format!(
        "server {{
            listen 127.0.0.1:%%PORT%%;
            location / {{ set $memcached_key $uri; memcached_pass 127.0.0.1:{}; }}
        }}",
        cache.port()
    ))
    .start();
    for (byte, escaped) in bytes().skip(1) {
        let reply = server.get(&format!("/a{escaped}b")).expect(200);
        let digits = reply.text();
        let sent: Vec<u8> = digits
            .as_bytes()
            .chunks(2)
            .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        let key = sent
            .strip_prefix(b"get ")
            .and_then(|rest| rest.strip_suffix(b"\r\n"));
        let key = key.expect("the line is whole");
        assert!(key.iter().all(|&byte| byte > b' '), "{byte}: {digits}");
    }
}

#[test]
fn what_scripts_put_into_a_request_does_not_split_it() {
    if skip_on_oracle("Debian's nginx has no Lua") {
        return;
    }
    let origin = recorder();
    let upstream = format!("http://127.0.0.1:{}", origin.port());
    let server = http(&format!(
        "server {{
            listen 127.0.0.1:%%PORT%%;
            location /field {{
                rewrite_by_lua_block {{
                    ngx.req.set_header('X-U', 'a\\r\\nInjected: b\\0c')
                    ngx.req.set_header('X\\r\\nInjected', 'b')
                    -- The origin reads up to it.
                    ngx.req.clear_header('X-Last')
                    ngx.req.set_header('X-Last', 'end')
                }}
                proxy_pass {upstream};
            }}
            location /args {{
                rewrite_by_lua_block {{ ngx.req.set_uri_args('a=b c\\r\\nInjected: d') }}
                proxy_pass {upstream};
            }}
            location /path {{
                rewrite_by_lua_block {{ ngx.req.set_uri('/a b\\r\\nInjected: d') }}
                proxy_pass {upstream};
            }}
            location /variable {{
                set $own '';
                rewrite_by_lua_block {{ ngx.var.own = 'a\\r\\nInjected: b' }}
                proxy_set_header X-U $own;
                proxy_pass {upstream};
            }}
        }}"
    ))
    .start();
    for place in ["/field", "/args"] {
        let reply = get(&server, place).expect(200);
        assert!(is_one_request(&reply.body), "{place}: {}", reply.text());
        assert!(!reply.text().contains("\nInjected"), "{place}");
    }
    assert_eq!(get(&server, "/variable").status, 400);
    // An error of the script: a path has no such bytes.
    assert_eq!(get(&server, "/path").status, 500);
}
