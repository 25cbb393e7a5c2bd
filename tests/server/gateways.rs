//! `uwsgi_pass` with a WSGI application, `scgi_pass`, `memcached_pass`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use weir_tests::{Application, Heard, Http2, Scripted, Site, http, is_oracle, read_until, send};

const WSGI: &str = "
def application(env, start_response):
    body = env['wsgi.input'].read(int(env.get('CONTENT_LENGTH') or 0))
    if env['PATH_INFO'] == '/broken':
        raise ValueError('no')
    start_response('201 Made', [('Content-Type', 'text/plain'), ('X-Two', 'a'), ('X-Two', 'b')])
    text = '%s %s %s %d' % (env['REQUEST_METHOD'], env['PATH_INFO'], env.get('HTTP_X_ONE'), len(body))
    return [text.encode()]
";

#[test]
fn a_wsgi_application_answers() {
    let site = http(
        "server {
            listen 127.0.0.1:%%PORT%%;
            location / {
                uwsgi_param REQUEST_METHOD $request_method;
                uwsgi_param PATH_INFO $document_uri;
                uwsgi_param QUERY_STRING $query_string;
                uwsgi_param CONTENT_LENGTH $content_length if_not_empty;
                uwsgi_pass unix:%%DIR%%/uwsgi.sock;
            }
        }",
    )
    .file("app.py", WSGI);
    let arguments = [
        "--plugin",
        "python3",
        "--socket",
        "uwsgi.sock",
        "--wsgi-file",
        "app.py",
        "--master",
    ];
    let Some(_uwsgi) = Application::start(&site, "uwsgi", &arguments, "uwsgi.sock") else {
        return;
    };
    let server = site.start();
    let reply = server.get_with("/a%20b", &["X-One: 1"]);
    assert_eq!(
        (reply.status, reply.reason.as_str(), reply.all("X-Two")),
        (201, "Made", vec!["a", "b"])
    );
    assert_eq!(reply.text(), "GET /a b 1 0");

    let mut connection = server.connect();
    connection.request("POST", "/", &["Content-Length: 100000"]);
    connection.send("x".repeat(100_000));
    assert_eq!(connection.reply().text(), "POST / None 100000");
    connection.request("POST", "/", &["Transfer-Encoding: chunked"]);
    connection.send("3\r\nabc\r\n0\r\n\r\n");
    assert_eq!(connection.reply().text(), "POST / None 3");
    assert_eq!(
        server.get("/broken").status,
        502,
        "uwsgi closes without a word"
    );
}

fn scgi_site(port: u16) -> Site {
    http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ scgi_pass 127.0.0.1:{port}; \
        scgi_param SCGI 1; scgi_param REQUEST_URI $request_uri; }} }}"
    ))
}

#[test]
fn scgi_is_a_netstring_and_content() {
    let application = Scripted::start(|stream, _| {
        let request = read_until(stream, b",content");
        let shown = String::from_utf8_lossy(&request).replace('\0', " ");
        send(stream, format!("Content-Type: text/plain\r\n\r\n{shown}"));
    });
    let server = scgi_site(application.port()).start();
    let mut connection = server.connect();
    connection.send("POST /u HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\ncontent");
    let expected =
        "CONTENT_LENGTH 7 SCGI 1 REQUEST_URI /u HTTP_HOST a HTTP_CONTENT_LENGTH 7 ,content";
    let reply = connection.reply().text();
    let (length, rest) = reply.split_once(':').expect("a netstring");
    assert_eq!(
        (length, rest),
        (
            (expected.len() - ",content".len()).to_string().as_str(),
            expected
        )
    );
}

#[test]
fn a_response_over_scgi_that_is_too_short_is_a_cut() {
    let application = Scripted::start(|stream, number| {
        read_until(stream, b",");
        match number {
            0 => send(stream, "HTTP/1.1 404 Gone fishing\r\nX: y\r\n\r\nnot here"),
            1 => send(stream, "Status: 200 OK\r\nContent-Length: 10\r\n\r\nhalf"),
            _ => send(stream, "no colon\r\n\r\n"),
        }
    });
    let server = scgi_site(application.port()).start();
    let reply = server.get("/").expect(404);
    assert_eq!(
        (reply.reason.as_str(), reply.text().as_str()),
        ("Gone fishing", "not here")
    );
    let reply = server.raw_or_closed("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(reply.as_ref().is_none_or(|reply| reply.cut), "{reply:?}");
    server.line("error.log", "upstream prematurely closed connection");
    assert_eq!(server.get("/").status, 502);
    server.line("error.log", "upstream sent invalid header: ");
}

#[test]
fn a_line_that_only_looks_like_a_status_line_is_passed_over() {
    let application = Scripted::start(|stream, number| {
        read_until(stream, b",");
        match number {
            0 => send(stream, "HTTP/2 404\r\nX: y\r\n\r\nwell"),
            1 => send(stream, "HTTP/1.1 abc\r\nStatus: 201 Made\r\n\r\nmade"),
            _ => send(stream, "Status: 103 Early\r\n\r\nno"),
        }
    });
    let server = scgi_site(application.port()).start();
    assert_eq!(server.get("/").expect(200).text(), "well");
    let reply = server.get("/").expect(201);
    assert_eq!(
        (reply.reason.as_str(), reply.text().as_str()),
        ("Made", "made")
    );
    if is_oracle() {
        // docs/compat.md, `statuses-of-applications`: nginx sends it on.
        return;
    }
    assert_eq!(server.get("/").status, 502);
    server.line("error.log", "upstream sent invalid status \"103 Early\"");
}

fn store(socket: &std::path::Path, key: &str, flags: u32, value: &str) {
    let mut stream = UnixStream::connect(socket).expect("memcached listens");
    write!(stream, "set {key} {flags} 0 {}\r\n{value}\r\n", value.len()).expect("memcached reads");
    let mut reply = [0; 8];
    stream.read_exact(&mut reply).expect("memcached answers");
    assert_eq!(&reply, b"STORED\r\n");
}

#[test]
fn memcached_has_values_or_not() {
    let site = http(
        "upstream cache { server unix:%%DIR%%/memcached.sock; keepalive 2; }
        server {
            listen 127.0.0.1:%%PORT%%;
            default_type text/plain;
            memcached_gzip_flag 2;
            location / {
                set $memcached_key $uri;
                memcached_pass cache;
                error_page 404 = @missing;
            }
            location /bare { set $memcached_key $uri; memcached_pass cache; }
            location @missing { return 200 made; }
        }",
    );
    let user: &[&str] = if rustix::process::geteuid().is_root() {
        &["-u", "root"]
    } else {
        &[]
    };
    let arguments = [&["-s", "memcached.sock"][..], user].concat();
    let Some(_memcached) = Application::start(&site, "memcached", &arguments, "memcached.sock")
    else {
        return;
    };
    let server = site.start();
    let socket = server.path("memcached.sock");
    let large = "0123456789".repeat(10_000);
    store(&socket, "/a%20b", 0, "spaced");
    store(&socket, "/empty", 0, "");
    store(&socket, "/large", 0, &large);
    store(&socket, "/packed", 2, "gzip");

    let mut connection = server.connect();
    for _ in 0..2 {
        let reply = connection.get("/a%20b");
        assert_eq!(
            (
                reply.status,
                reply.field("Content-Type"),
                reply.text().as_str()
            ),
            (200, "text/plain", "spaced")
        );
        assert_eq!(connection.get("/empty").text(), "");
        assert_eq!(connection.get("/large").text(), large);
        assert_eq!(connection.get("/nothing").text(), "made");
    }
    assert_eq!(
        server
            .get_with("/packed", &["Accept-Encoding: gzip"])
            .field("Content-Encoding"),
        "gzip"
    );
    let whole = server.get("/a%20b");
    assert_eq!(whole.all("Accept-Ranges"), ["bytes"]);
    let part = server.get_with("/a%20b", &["Range: bytes=1-3"]).expect(206);
    assert_eq!(
        (part.text().as_str(), part.field("Content-Range")),
        ("pac", "bytes 1-3/6")
    );
    let several = server.get_with("/a%20b", &["Range: bytes=0-1,3-4"]);
    assert_eq!(several.expect(200).text(), "spaced");
    let bare = server.get("/bare").expect(404);
    assert!(bare.text().contains("404 Not Found"), "{}", bare.text());
    assert_eq!(
        server.request("POST", "/", &["Content-Length: 0"]).status,
        405
    );
}

/// SCGI and uwsgi announce a length, so a body of unknown length is read before it is sent.
#[test]
fn a_body_of_unknown_length_is_announced_with_its_length() {
    let cgi = "Status: 200 OK\r\n\r\n";
    for prefix in ["scgi", "uwsgi"] {
        let application = Scripted::start(move |stream, _| {
            let request = read_until(stream, b"content");
            let name = b"CONTENT_LENGTH";
            let at = request.windows(name.len()).position(|part| part == name);
            let value = at.map(|at| &request[at + name.len()..][..4]);
            let digits = value
                .unwrap_or(b"none")
                .iter()
                .filter(|byte| byte.is_ascii_alphanumeric());
            let text: String = digits.take(1).map(|&byte| char::from(byte)).collect();
            send(stream, format!("{cgi}{text}"));
        });
        let (before, parameter) = match is_oracle() {
            true => ("", "http2"),
            false => ("http2 on;", ""),
        };
        let port = application.port();
        let server = http(&format!(
            "{before} server {{ listen 127.0.0.1:%%PORT%% {parameter}; listen 127.0.0.1:%%PORT1%%;
                location / {{ {prefix}_request_buffering off; {prefix}_pass 127.0.0.1:{port};
                    {prefix}_param CONTENT_LENGTH $content_length; }} }}"
        ))
        .start();
        // nginx knows the length of such a body only if it has all of it in time.
        if !is_oracle() {
            let mut client = Http2::connect(&server, &[]);
            let expect = [("expect", "100-continue")];
            let stream = client.request("POST", "/", &expect, false);
            // The head has been judged when this comes, and none of the body has been sent.
            client.hear(|heard| matches!(heard, Heard::Headers { ends: false, .. }));
            client.data(stream, b"content", true);
            assert_eq!(client.reply(stream).text(), "7", "{prefix} over HTTP/2");
        }
        let mut client = server.connect_to(1);
        client.request("POST", "/", &["Transfer-Encoding: chunked"]);
        client.send("3\r\ncon\r\n");
        client.send("4\r\ntent\r\n0\r\n\r\n");
        assert_eq!(client.reply().text(), "7", "{prefix} over HTTP/1");
    }
}

#[test]
fn framing_that_scripts_may_not_use_is_refused() {
    if weir_tests::skip_on_oracle("nginx does so since 1.23") {
        return;
    }
    let scripts = [
        (
            "Transfer-Encoding: gzip",
            "unknown \"Transfer-Encoding\": \"gzip\"",
        ),
        (
            "Content-Length: x",
            "invalid \"Content-Length\" header: \"Content-Length: x\"",
        ),
    ];
    for (field, words) in scripts {
        let script = Scripted::start(move |stream, _| {
            read_until(stream, b",");
            send(stream, format!("{field}\r\n\r\nabc"));
        });
        let port = script.port();
        let server = http(&format!(
            "error_log error.log error;
             server {{ listen 127.0.0.1:%%PORT%%; location / {{ scgi_pass 127.0.0.1:{port}; }} }}"
        ))
        .start();
        server.request("HEAD", "/", &[]).expect(502);
        let line = format!("upstream sent {words} while reading response header from upstream");
        server.line("error.log", &line);
    }
}

/// An application is no HTTP server: what it does not say of itself and of the time, the server before it says, also where
/// `…_pass_header` would pass it on.
#[test]
fn date_and_server_are_there_although_an_applications_would_be_passed_on() {
    let application = Scripted::start(|stream, number| {
        read_until(stream, b",");
        let own = match number {
            0 => "",
            _ => "Server: own\r\nDate: Sun, 09 Sep 2001 01:46:40 GMT\r\n",
        };
        send(stream, format!("Content-Type: text/plain\r\n{own}\r\nok"));
    });
    let port = application.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ scgi_pass 127.0.0.1:{port}; scgi_param SCGI 1;
            scgi_pass_header Date; scgi_pass_header Server; }} }}"
    ))
    .start();
    let reply = server.get("/");
    assert_eq!((reply.status, reply.text()), (200, "ok".to_owned()));
    assert!(reply.has("Date") && reply.has("Server"), "{reply:?}");
    let reply = server.get("/");
    assert_eq!(
        (reply.field("Server"), reply.field("Date")),
        ("own", "Sun, 09 Sep 2001 01:46:40 GMT")
    );
}

/// As of an HTTP server's response: the first one counts, and the log tells of the others.
#[test]
fn fields_that_an_application_repeats_are_in_the_log() {
    if weir_tests::skip_on_oracle("Debian's is too old to warn") {
        return;
    }
    let origin = Scripted::start(|stream, _| {
        read_until(stream, b",");
        send(
            stream,
            "Status: 200 OK\r\nContent-Type: text/a\r\nContent-type: text/b\r\n\r\nx",
        );
    });
    let server = scgi_site(origin.port()).start();
    assert_eq!(server.get("/").expect(200).field("Content-Type"), "text/a");
    server.line(
        "error.log",
        "upstream sent duplicate header line: \"Content-type: text/b\", previous value: \"Content-Type: text/a\", ignored",
    );
}
