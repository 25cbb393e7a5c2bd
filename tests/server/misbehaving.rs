//! Origins that misbehave on purpose, one way each: what the client gets is a clear status, or a cut that can not be taken
//! for whole, and one line in the error log says whose fault it was. Others have their place in `proxy`.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use weir_tests::{Scripted, Server, http, is_oracle, read_until, send, skip_on_oracle};

/// A server that passes everything on, with these directives and connections that are kept.
fn proxy(origin: &Scripted, directives: &str) -> Server {
    let port = origin.port();
    http(&format!(
        "log_format l '$status $upstream_status'; access_log access.log l;
         upstream u {{ server 127.0.0.1:{port}; keepalive 4; }}
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://u; proxy_http_version 1.1;
            proxy_set_header Connection ''; {directives} }} }}"
    ))
    .start()
}

/// What a client sees of one request until its connection ends.
fn all(server: &Server) -> String {
    let mut connection = server.connect();
    connection.request("GET", "/", &["Connection: close"]);
    String::from_utf8_lossy(&connection.rest()).into_owned()
}

/// The one line that says what the origin did.
fn blamed(server: &Server, text: &str) {
    let line = server.line("error.log", text);
    assert!(line.contains(", upstream: \"http://127.0.0.1:"), "{line}");
    let log = server.read("error.log");
    let errors = log.lines().filter(|line| line.contains("[error]")).count();
    assert_eq!(errors, 1, "{log}");
}

/// Ends a connection so that the other side gets a reset, whatever was sent before.
fn reset(stream: &TcpStream) {
    set_socket_linger(stream, Some(Duration::ZERO)).expect("it is a socket");
}

#[test]
fn a_reset_in_mid_content_is_a_cut() {
    for (head, body) in [
        ("Content-Length: 100", "part"),
        ("Transfer-Encoding: chunked", "4\r\npart\r\n"),
    ] {
        for directives in ["", "proxy_buffering off;"] {
            let (sender, receiver) = std::sync::mpsc::channel::<()>();
            let origin = Scripted::start(move |stream, _| {
                read_until(stream, b"\r\n\r\n");
                send(stream, format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}"));
                // Not before the client has what came so far.
                let _ = receiver.recv_timeout(weir_tests::PATIENCE);
                reset(stream);
            });
            let server = proxy(&origin, directives);
            let mut connection = server.connect();
            connection.request("GET", "/", &[]);
            let mut received = Vec::new();
            // nginx may keep what is in its buffers.
            while !(directives.is_empty() || received.windows(4).any(|window| window == b"part")) {
                received.extend(connection.at_least(1));
            }
            let _ = sender.send(());
            received.extend(connection.rest());
            let received = String::from_utf8_lossy(&received).into_owned();
            // A reset may overtake all that came before it, and then there was no answer.
            let begun = received.starts_with("HTTP/1.1 200");
            assert!(
                begun || directives.is_empty() && received.starts_with("HTTP/1.1 502"),
                "{received}"
            );
            assert!(!begun || !received.ends_with("0\r\n\r\n"), "{received}");
            blamed(
                &server,
                "failed (104: Connection reset by peer) while reading ",
            );
        }
    }
}

#[test]
fn silence_in_mid_content_is_a_cut() {
    let origin = Scripted::start(|stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart");
        // Until the server gives up.
        let _ = stream.read(&mut [0]);
    });
    let server = proxy(&origin, "proxy_read_timeout 200ms;");
    let received = all(&server);
    assert!(
        received.starts_with("HTTP/1.1 200") && (is_oracle() || received.ends_with("part")),
        "{received}"
    );
    blamed(
        &server,
        "upstream timed out (110: Connection timed out) while reading upstream",
    );
}

#[test]
fn an_end_before_the_answer_is_a_bad_gateway() {
    // It still listens, but says that it has nothing to say.
    let origin = Scripted::start(|stream, _| {
        read_until(stream, b"\r\n\r\n");
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read(&mut [0]);
    });
    let server = proxy(&origin, "");
    assert!(all(&server).starts_with("HTTP/1.1 502"));
    blamed(
        &server,
        "upstream prematurely closed connection while reading response header from upstream",
    );
}

#[test]
fn an_end_after_the_answer_is_none_before_it() {
    let origin = Scripted::start(|stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole");
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read(&mut [0]);
    });
    let server = proxy(&origin, "");
    for _ in 0..3 {
        assert!(all(&server).ends_with("\r\n\r\nwhole"));
    }
    assert_eq!(origin.connections(), 3);
    // nginx may ask again on the connection before it has seen its end; then it logs that.
    assert!(is_oracle() || !server.read("error.log").contains("[error]"));
}

/// What an origin says without having been asked must never be taken for the answer to the next question.
#[test]
fn an_answer_that_nobody_asked_for_reaches_nobody() {
    if skip_on_oracle("it may notice too late, and cut the next answer") {
        return;
    }
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let (said, saying) = std::sync::mpsc::channel::<()>();
    let origin = Scripted::start(move |stream, number| {
        read_until(stream, b"\r\n\r\n");
        send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright");
        if number == 0 {
            let _ = receiver.recv_timeout(weir_tests::PATIENCE);
            send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong");
            let _ = said.send(());
        }
    });
    let server = proxy(&origin, "");
    assert!(all(&server).ends_with("right"));
    let _ = sender.send(());
    // It is with the server before the next question is.
    let _ = saying.recv_timeout(weir_tests::PATIENCE);
    for _ in 0..5 {
        assert!(all(&server).ends_with("right"));
    }
}

#[test]
fn content_where_there_can_be_none_is_left_away() {
    for (method, head) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5"),
        ("GET", "HTTP/1.1 204 No Content"),
        ("GET", "HTTP/1.1 304 Not Modified"),
    ] {
        let origin = Scripted::start(move |stream, _| {
            read_until(stream, b"\r\n\r\n");
            send(
                stream,
                format!("{head}\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"),
            );
        });
        let server = proxy(&origin, "");
        for _ in 0..2 {
            let mut connection = server.connect();
            connection.request(method, "/", &["Connection: close"]);
            let received = String::from_utf8_lossy(&connection.rest()).into_owned();
            assert!(
                received.ends_with("\r\n\r\n") && !received.contains("bad"),
                "{received}"
            );
        }
        assert_eq!(origin.connections(), 2, "{head}");
    }
}

#[test]
fn chunks_that_make_no_sense_are_a_cut() {
    if skip_on_oracle("older versions may cut before the head was sent") {
        return;
    }
    for chunk in [
        "fffffffffffffffff\r\nx",
        "-1\r\nx",
        "5\rwhole",
        "5\r\nwholeX\r\n0\r\n\r\n",
        "\r\n0\r\n\r\n",
        "g\r\n",
    ] {
        let origin = Scripted::start(move |stream, _| {
            read_until(stream, b"\r\n\r\n");
            send(
                stream,
                format!(
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n{chunk}"
                ),
            );
        });
        let server = proxy(&origin, "");
        let received = all(&server);
        assert!(
            received.starts_with("HTTP/1.1 200"),
            "{chunk:?}: {received}"
        );
        assert!(!received.ends_with("0\r\n\r\n"), "{chunk:?}: {received}");
        blamed(
            &server,
            "upstream sent invalid chunked response while reading upstream",
        );
    }
}

/// An origin that has seen enough answers before it was sent everything, and closes.
#[test]
fn an_early_answer_reaches_a_client_that_still_sends() {
    for directives in ["", "proxy_request_buffering off;"] {
        let origin = Scripted::start(|stream, _| {
            let _ = stream.read(&mut [0; 20]);
            send(
                stream,
                "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 4\r\n\r\nless",
            );
        });
        let server = proxy(&origin, &format!("client_max_body_size 0; {directives}"));
        let mut connection = server.connect();
        connection.request("POST", "/", &["Content-Length: 200000"]);
        connection.send(vec![b'x'; 200_000]);
        let reply = connection.reply();
        // The reset that ends the origin's connection may overtake its answer, which TCP allows.
        let overtaken = reply.status == 502 && server.read("error.log").contains("104: ");
        assert!(
            reply.status == 413 && reply.text() == "less" || overtaken,
            "{directives}: {}",
            reply.status
        );
    }
}

/// A kept connection may end just when it is used again. What may be asked twice is asked again.
#[test]
fn an_end_of_a_kept_connection_costs_no_request() {
    for (method, status) in [("GET", 200), ("PUT", 200), ("POST", 502)] {
        let origin = Scripted::start(|stream, number| {
            read_until(stream, b"\r\n\r\n");
            send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            if number == 0 {
                // The next request is read, and not answered.
                read_until(stream, b"\r\n\r\n");
            }
        });
        let server = proxy(&origin, "");
        let mut connection = server.connect();
        assert_eq!(connection.get("/").text(), "ok");
        connection.request(method, "/", &["Content-Length: 0"]);
        assert_eq!(connection.reply().status, status, "{method}");
        let ends = server.lines("access.log", 2);
        let tries = if status == 200 { "502, 200" } else { "502" };
        assert_eq!(ends[1], format!("{status} {tries}"), "{method}");
    }
}
