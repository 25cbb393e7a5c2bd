//! QUIC (RFC 9000) as a transport: which server answers, what is refused and how, and what a connection outlives.
//!
//! The oracle has no QUIC before 1.25, and Debian's none at all: these tests run on Weir alone.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use weir_tests::{PATIENCE, Server, Signal, Site, http, skip_on_oracle, until};

use crate::http3_client::{Http3, Quic};
use crate::tls::{CERTIFICATE, Client, https, self_signed};

const WHY: &str = "the oracle has no QUIC";

/// A site with QUIC on its first port.
fn site(rest: &str) -> Site {
    https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% quic reuseport; listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} {rest} }}"
    ))
}

/// From another port from now on, as behind a NAT that has forgotten the old one. Returns the new port.
pub(crate) fn rebind(quic: &Quic) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let port = socket.local_addr().expect("bound").port();
    quic.run(async { quic.endpoint.rebind(socket) })
        .expect("it is a socket");
    port
}

#[test]
fn the_server_is_chosen_by_its_name_as_over_tcp() {
    if skip_on_oracle(WHY) {
        return;
    }
    let (one, two) = (self_signed("one.test"), self_signed("two.test"));
    let server = http(
        "ssl_protocols TLSv1.3;
         server { listen 127.0.0.1:%%PORT%% quic; server_name one.test;
                  ssl_certificate one.crt; ssl_certificate_key one.key; return 200 'one $ssl_server_name'; }
         server { listen 127.0.0.1:%%PORT%% quic; server_name two.test;
                  ssl_certificate two.crt; ssl_certificate_key two.key;
                  return 200 'two $ssl_protocol $ssl_cipher $ssl_curve $ssl_alpn_protocol $http3'; }
         server { listen 127.0.0.1:%%PORT%% quic; server_name no.test; ssl_reject_handshake on; }
         server { listen 127.0.0.1:%%PORT%% quic; server_name off.test; http3 off;
                  ssl_certificate two.crt; ssl_certificate_key two.key; }",
    )
    .file("one.crt", &one.certificate)
    .file("one.key", one.key)
    .file("two.crt", &two.certificate)
    .file("two.key", two.key)
    .start();
    let trusting_two = Client::trusting(&two.certificate);
    let quic = Quic::connect_as(&server, 0, &trusting_two, "two.test").expect("its certificate");
    let mut client = Http3::over(quic);
    let mut reply = client.ask("GET", "/", &[], b"");
    // The client's requests are for "localhost", which no server has: then the name of TLS counts.
    if reply.status == 421 {
        reply = client.get("/");
    }
    assert!(reply.status == 200, "{reply:?}");
    let wrong = Quic::connect_as(&server, 0, &trusting_two, "one.test");
    assert!(wrong.is_err(), "the other server has another certificate");
    for (name, alert) in [("no.test", 112), ("off.test", 120)] {
        let refused = Quic::connect_as(&server, 0, &Client::new(), name);
        let error = refused.err().expect("it is refused");
        let code = format!("{:#x}", 0x100 + alert);
        assert!(
            error.contains(&code) || error.contains(&format!("{alert}")),
            "{name}: {error}"
        );
    }
    server.line("error.log", "callback failed");
}

#[test]
fn what_tls_agreed_on_is_known() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site(
        "return 200 '$ssl_protocol|$ssl_cipher|$ssl_alpn_protocol|$ssl_session_reused|$http3|$https|$server_port';",
    )
    .start();
    let reply = Http3::connect(&server).get("/").text();
    let expected = format!("|h3|.|h3|on|{}", server.port(0));
    assert!(reply.starts_with("TLSv1.3|TLS_"), "{reply}");
    assert!(reply.ends_with(&expected), "{reply}");
}

#[test]
fn certificates_of_clients_are_verified() {
    if skip_on_oracle(WHY) {
        return;
    }
    let known = self_signed("client");
    let server = site(
        "ssl_verify_client on; ssl_client_certificate client.crt; return 200 '$ssl_client_verify $ssl_client_s_dn';",
    )
    .file("client.crt", &known.certificate)
    .start();
    let ask = |client: Client| {
        let quic = Quic::connect_as(&server, 0, &client, "localhost").expect("it listens");
        let reply = Http3::over(quic).get("/");
        (reply.status, reply.text())
    };
    let only = &[&rustls::version::TLS13];
    let (status, text) = ask(Client::with(Some(&known), only));
    assert_eq!((status, &*text), (200, "SUCCESS CN=client"));
    assert_eq!(ask(Client::new()).0, 400);
    let unknown = self_signed("stranger");
    assert_eq!(ask(Client::with(Some(&unknown), only)).0, 400);
}

/// Replaces texts in the configuration, and has it read.
fn change(server: &Server, pairs: &[(&str, &str)]) {
    let path = server.path("nginx.conf");
    let mut text = std::fs::read_to_string(&path).expect("it was started with it");
    for (from, to) in pairs {
        assert!(text.contains(from), "{text}");
        text = text.replace(from, to);
    }
    std::fs::write(&path, text).expect("we have written it");
    server.signal(Signal::HUP);
}

#[test]
fn a_connection_outlives_reloads_and_the_next_request_has_the_new_configuration() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("location / { return 200 'round0 $connection'; }").start();
    let mut client = Http3::connect(&server);
    let first = client.get("/").text();
    let (_, connection) = first.split_once(' ').expect("two words");
    for round in 1..6 {
        let (from, to) = (format!("round{}", round - 1), format!("round{round}"));
        change(&server, &[(&from, &to)]);
        let wanted = format!("{to} {connection}");
        let changed = until(|| (client.get("/").text() == wanted).then_some(()));
        assert!(changed.is_some(), "round {round}");
    }
}

#[test]
fn connections_outlive_loops_that_come() {
    if skip_on_oracle(WHY) {
        return;
    }
    for (socket, bpf) in [("reuseport", "on"), ("reuseport", "off"), ("", "on")] {
        let server = https(&format!(
            "server {{ listen 127.0.0.1:%%PORT%% quic {socket}; {CERTIFICATE}
                       location / {{ return 200 'few $connection'; }} }}"
        ))
        .main(&format!("worker_processes 2;\nquic_bpf {bpf};"))
        .start();
        let mut clients: Vec<(Http3, String)> = (0..6)
            .map(|_| {
                let mut client = Http3::connect(&server);
                let text = client.get("/").text();
                let connection = text.trim_start_matches("few ").to_owned();
                (client, connection)
            })
            .collect();
        // The kernel's hash now leads the datagrams of most of them to other sockets.
        let loops = ("worker_processes 2;", "worker_processes 4;");
        change(&server, &[loops, ("few", "more")]);
        for (client, connection) in &mut clients {
            let wanted = format!("more {connection}");
            let changed = until(|| (client.get("/").text() == wanted).then_some(()));
            assert!(changed.is_some(), "{socket} {bpf}");
        }
    }
}

#[test]
fn loops_that_go_let_their_requests_finish_and_take_no_new_clients() {
    if skip_on_oracle(WHY) {
        return;
    }
    let big = vec![b'x'; 1_000_000];
    let server =
        site("location / { return 200 many; } location /big { limit_rate 1m; root html; }")
            .main("worker_processes 4;")
            .file("html/big", &big)
            .start();
    let mut downloads: Vec<_> = (0..6)
        .map(|_| {
            let mut client = Http3::connect(&server);
            let mut stream = client.begin("GET", "/big", &[]);
            client.end(&mut stream);
            assert_eq!(client.head(&mut stream).status, 200);
            (client, stream)
        })
        .collect();
    let loops = ("worker_processes 4;", "worker_processes 1;");
    change(&server, &[loops, ("many", "one")]);
    assert!(until(|| (Http3::connect(&server).get("/").text() == "one").then_some(())).is_some());
    for _ in 0..10 {
        // Whatever socket the kernel chooses.
        assert_eq!(Http3::connect(&server).get("/").text(), "one");
    }
    for (client, stream) in &mut downloads {
        let mut arrived = 0;
        while let Some(piece) = client.piece(stream) {
            arrived += piece.len();
        }
        assert_eq!(arrived, big.len());
    }
}

#[test]
fn another_binary_leaves_downloads_to_the_old_one_and_takes_new_clients() {
    if skip_on_oracle(WHY) {
        return;
    }
    let big = vec![b'x'; 1_000_000];
    let mut server =
        site("location / { return 200 $pid; } location /big { limit_rate 1m; root html; }")
            // Most loops of the old process have nothing left to do, and end while others still serve.
            .main("worker_processes 4;")
            .file("html/big", &big)
            .start();
    let old = Http3::connect(&server).get("/").text();
    let mut downloads: Vec<_> = (0..2)
        .map(|_| {
            let mut client = Http3::connect(&server);
            let mut stream = client.begin("GET", "/big", &[]);
            client.end(&mut stream);
            assert_eq!(client.head(&mut stream).status, 200);
            (client, stream)
        })
        .collect();
    server.signal(Signal::USR2);
    assert!(until(|| server.path("nginx.pid.oldbin").exists().then_some(())).is_some());
    server.line("error.log", " is ready");
    let pid = std::fs::read_to_string(server.path("nginx.pid.oldbin")).expect("it is there");
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().expect("a number"));
    rustix::process::kill_process(pid.expect("a process"), Signal::QUIT).expect("it lives");
    server.line("error.log", "gracefully shutting down");
    let fresh = until(|| {
        let text = Http3::connect(&server).get("/").text();
        (text != old).then_some(text)
    });
    let new = fresh.expect("the new process answers");
    for _ in 0..5 {
        assert_eq!(Http3::connect(&server).get("/").text(), new);
    }
    for (client, stream) in &mut downloads {
        let (mut arrived, mut pieces) = (0, 0);
        while let Some(piece) = client.piece(stream) {
            arrived += piece.len();
            pieces += 1;
            // Each leads its datagrams to whatever socket of the new process.
            if pieces < 4 {
                rebind(&client.quic);
            }
        }
        assert_eq!(arrived, big.len());
    }
    drop(downloads);
    assert!(server.ended().success(), "the old one ends");
    server.signal(Signal::QUIT);
    assert!(until(|| (!server.path("nginx.pid").exists()).then_some(())).is_some());
}

#[test]
fn a_client_that_left_without_a_word_does_not_hold_up_the_end() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut server =
        site("root html; access_log access.log; lingering_timeout 1s; keepalive_timeout 1h;")
            .file("html/big", vec![b'x'; 200_000])
            .start();
    // By QUIC it may be silent for as long as the server allows.
    let quic = Quic::connect_with(&server, &Client::new(), |config| {
        let mut transport = quinn::TransportConfig::default();
        transport.max_idle_timeout(None);
        config.transport_config(Arc::new(transport));
    });
    let mut client = Http3::over(quic.expect("it listens"));
    let mut stream = client.begin("GET", "/big", &[]);
    client.end(&mut stream);
    // Its request leaves. From here on it does nothing more: the server has all of the response in its buffer, and hears of
    // none of it that it has arrived.
    client.quic.run(async {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    });
    server.lines("access.log", 1);
    server.signal(Signal::QUIT);
    assert!(server.ended().success());
}

#[test]
fn an_upload_survives_another_binary() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut server = site(
        "location / { return 200 $pid; } \
         location /put { client_max_body_size 0; dav_methods PUT; root html; create_full_put_path on; }",
    )
    .start();
    let mut client = Http3::connect(&server);
    let old = client.get("/").text();
    let piece = vec![b'x'; 100_000];
    let mut stream = client.begin("PUT", "/put/file", &[]);
    client.send(&mut stream, &piece);
    server.signal(Signal::USR2);
    assert!(until(|| server.path("nginx.pid.oldbin").exists().then_some(())).is_some());
    server.line("error.log", " is ready");
    let pid = std::fs::read_to_string(server.path("nginx.pid.oldbin")).expect("it is there");
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().expect("a number"));
    rustix::process::kill_process(pid.expect("a process"), Signal::QUIT).expect("it lives");
    server.line("error.log", "gracefully shutting down");
    let fresh = || (Http3::connect(&server).get("/").text() != old).then_some(());
    assert!(until(fresh).is_some(), "the new process answers");
    // All of it takes the way from the new process to the old one.
    for _ in 0..100 {
        client.send(&mut stream, &piece);
    }
    client.end(&mut stream);
    let reply = client.reply(&mut stream);
    assert_eq!(reply.status, 201, "{reply:?}");
    let stored = std::fs::metadata(server.path("html/put/file")).expect("it was put");
    assert_eq!(stored.len(), 101 * piece.len() as u64);
    drop(client);
    assert!(server.ended().success(), "the old one ends");
    server.signal(Signal::QUIT);
    assert!(until(|| (!server.path("nginx.pid").exists()).then_some(())).is_some());
}

#[test]
fn a_removed_listener_lets_its_connections_finish() {
    if skip_on_oracle(WHY) {
        return;
    }
    let big = vec![b'x'; 1_000_000];
    let server = site("limit_rate 1m; root html;")
        .file("html/big", &big)
        .start();
    let mut client = Http3::connect(&server);
    let mut stream = client.begin("GET", "/big", &[]);
    client.end(&mut stream);
    assert_eq!(client.head(&mut stream).status, 200);
    let listen = format!("listen 127.0.0.1:{} quic reuseport;", server.port(0));
    change(&server, &[(&listen, "")]);
    let mut arrived = 0;
    while let Some(piece) = client.piece(&mut stream) {
        arrived += piece.len();
    }
    assert_eq!(arrived, big.len());
    let refused = until(|| {
        let answer = answer_to(&server, &initial_of(0x5a5a_5a5a));
        answer.is_empty().then_some(())
    });
    assert!(refused.is_some(), "nobody reads the port any more");
}

#[test]
fn a_connection_of_a_server_that_died_is_reset() {
    if skip_on_oracle(WHY) {
        return;
    }
    // The key survives the worker, and the master starts another one.
    let server = site("quic_host_key host.key; return 200 here;")
        .file("host.key", "thirty-two bytes of a host's key")
        .tolerate("exited on signal 9")
        .start();
    let mut client = Http3::connect(&server);
    assert_eq!(client.get("/").text(), "here");
    let children = format!("/proc/{0}/task/{0}/children", server.pid().as_raw_nonzero());
    let children = std::fs::read_to_string(children).expect("it has a worker");
    let worker = children.split_whitespace().next().expect("it has a worker");
    let worker = rustix::process::Pid::from_raw(worker.parse().expect("a number"));
    rustix::process::kill_process(worker.expect("a process"), Signal::KILL).expect("it lives");
    let fresh = until(|| {
        let quic = Quic::connect_as(&server, 0, &Client::new(), "localhost").ok()?;
        Some(Http3::over(quic).get("/").text())
    });
    assert_eq!(fresh.as_deref(), Some("here"));
    let lost = until(|| {
        let sent = client.ask("GET", "/", &[], b"");
        sent.error.or_else(|| {
            client
                .quic
                .connection
                .close_reason()
                .map(|why| why.to_string())
        })
    });
    let reason = client.quic.connection.close_reason();
    assert!(
        lost.is_some() && matches!(reason, Some(quinn::ConnectionError::Reset)),
        "{reason:?}"
    );
}

#[test]
fn a_client_behind_a_nat_that_forgets_keeps_its_connection() {
    if skip_on_oracle(WHY) {
        return;
    }
    for bpf in ["on", "off"] {
        let server = site("location / { return 200 '$remote_port $connection'; }")
            .main(&format!("worker_processes 4; quic_bpf {bpf};"))
            .start();
        let mut client = Http3::connect(&server);
        let first = client.get("/").text();
        let (_, connection) = first.split_once(' ').expect("two words");
        for _ in 0..6 {
            let port = rebind(&client.quic);
            // The address counts once the path is validated.
            let seen = until(|| {
                let text = client.get("/").text();
                (text == format!("{port} {connection}")).then_some(())
            });
            assert!(seen.is_some(), "with quic_bpf {bpf}");
        }
    }
}

#[test]
fn retry_makes_clients_prove_their_address() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("quic_retry on; return 200 here;").start();
    assert_eq!(Http3::connect(&server).get("/").text(), "here");
    // An Initial without a token is answered with a Retry packet, which is smaller.
    let answer = answer_to(&server, &initial_of(1));
    assert_eq!(answer.first().map(|byte| byte & 0xf0), Some(0xf0));
    assert!(answer.len() < 1200);
}

/// Remembers the tokens of a client as `quinn` does, and counts them.
#[derive(Default)]
struct CountedTokens {
    kept: quinn::TokenMemoryCache,
    stored: AtomicUsize,
    used: AtomicUsize,
}

impl quinn::TokenStore for CountedTokens {
    fn insert(&self, name: &str, token: bytes::Bytes) {
        self.stored.fetch_add(1, Relaxed);
        self.kept.insert(name, token);
    }

    fn take(&self, name: &str) -> Option<bytes::Bytes> {
        let token = self.kept.take(name)?;
        self.used.fetch_add(1, Relaxed);
        Some(token)
    }
}

#[test]
fn a_client_that_returns_need_not_prove_its_address_again() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("quic_retry on; return 200 here;").start();
    let tokens = Arc::new(CountedTokens::default());
    let visit = || {
        let quic = Quic::connect_with(&server, &Client::new(), |config| {
            config.token_store(Arc::clone(&tokens) as Arc<dyn quinn::TokenStore>);
        });
        let quic = quic.expect("it listens");
        // A Retry makes the client send its hello twice.
        let hellos = quic.connection.stats().frame_tx.crypto;
        assert_eq!(Http3::over(quic).get("/").text(), "here");
        hellos
    };
    let first = visit();
    assert!(tokens.stored.load(Relaxed) > 0);
    let second = visit();
    assert_eq!(tokens.used.load(Relaxed), 1);
    assert!(second < first, "{first} CRYPTO frames, and then {second}");
}

#[test]
fn downloads_with_bbr_and_without_segmentation() {
    if skip_on_oracle(WHY) {
        return;
    }
    let big = vec![b'x'; 3_000_000];
    let server = site("quic_congestion_control bbr; quic_gso off; root html;")
        .file("html/big", &big)
        .start();
    let mut client = Http3::connect(&server);
    for _ in 0..3 {
        assert_eq!(client.get("/big").body.len(), big.len());
    }
}

/// A datagram that begins like a client's first, with this version.
fn initial_of(version: u32) -> Vec<u8> {
    let mut datagram = vec![0xc0];
    datagram.extend(version.to_be_bytes());
    datagram.extend([8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
    // The length of the rest, as a number of two bytes.
    let rest = 1200 - datagram.len() - 2;
    datagram.extend((rest as u16 | 0x4000).to_be_bytes());
    datagram.resize(1200, 7);
    datagram
}

/// The datagram that this one is answered with; empty without an answer.
fn answer_to(server: &Server, datagram: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket
        .set_read_timeout(Some(PATIENCE.min(Duration::from_secs(2))))
        .expect("not zero");
    socket
        .send_to(datagram, ("127.0.0.1", server.port(0)))
        .expect("loopback takes it");
    let mut buffer = [0; 2000];
    match socket.recv(&mut buffer) {
        Ok(length) => buffer[..length].to_vec(),
        Err(_) => Vec::new(),
    }
}

#[test]
fn another_version_is_answered_with_those_that_are_spoken() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("return 200 here;").start();
    let answer = answer_to(&server, &initial_of(0x5a5a_5a5a));
    // Version Negotiation (RFC 8999, section 6): version 0, and both ids.
    assert_eq!(answer.get(1..5), Some(&[0; 4][..]));
    assert_eq!(answer.get(5..15), Some(&[0, 8, 1, 2, 3, 4, 5, 6, 7, 8][..]));
    assert!(
        answer[15..]
            .chunks(4)
            .any(|version| version == [0, 0, 0, 1])
    );
    // A smaller datagram is not answered: the answer could be larger.
    assert!(answer_to(&server, &initial_of(0x5a5a_5a5a)[..600]).is_empty());
}

#[test]
fn garbage_costs_no_connection() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("return 200 here;").start();
    let mut client = Http3::connect(&server);
    assert_eq!(client.get("/").text(), "here");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let to = ("127.0.0.1", server.port(0));
    let mut seed = 1_u32;
    for round in 0..2000_usize {
        let mut datagram: Vec<u8> = (0..round % 1400)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 24) as u8
            })
            .collect();
        // Half of them look like first packets.
        if round % 2 == 0 && datagram.len() >= 5 {
            datagram[..5].copy_from_slice(&[0xc0, 0, 0, 0, 1]);
        }
        // The socket may have heard that nobody wants them.
        let _ = socket.send_to(&datagram, to);
    }
    for _ in 0..10 {
        let _ = socket.send_to(&initial_of(1), to);
    }
    assert_eq!(client.get("/").text(), "here");
    assert_eq!(Http3::connect(&server).get("/").text(), "here");
}

#[test]
fn a_graceful_stop_lets_a_download_finish() {
    if skip_on_oracle(WHY) {
        return;
    }
    let big = vec![b'x'; 2_000_000];
    let mut server = site("limit_rate 2m; root html;")
        .file("html/big", &big)
        .start();
    let mut client = Http3::connect(&server);
    let mut stream = client.begin("GET", "/big", &[]);
    client.end(&mut stream);
    assert_eq!(client.head(&mut stream).status, 200);
    server.signal(Signal::QUIT);
    let mut arrived = 0;
    while let Some(piece) = client.piece(&mut stream) {
        arrived += piece.len();
    }
    assert_eq!(arrived, big.len());
    drop(stream);
    drop(client);
    assert!(server.ended().success());
}

#[test]
fn what_contradicts_quic_is_an_error() {
    let cases = [
        ("ssl", "\"ssl\" parameter is incompatible with \"quic\""),
        ("http2", "\"http2\" parameter is incompatible with \"quic\""),
        (
            "backlog=5",
            "\"backlog\" parameter is incompatible with \"quic\"",
        ),
        (
            "fastopen=5",
            "\"fastopen\" parameter is incompatible with \"quic\"",
        ),
        (
            "proxy_protocol",
            "\"proxy_protocol\" parameter is incompatible with \"quic\"",
        ),
        (
            "so_keepalive=on",
            "\"so_keepalive\" parameter is incompatible with \"quic\"",
        ),
    ];
    if skip_on_oracle(WHY) {
        return;
    }
    for (parameter, message) in cases {
        let tested = https(&format!(
            "server {{ listen 127.0.0.1:%%PORT%% quic {parameter}; {CERTIFICATE} }}"
        ))
        .test();
        assert_ne!(tested.code, 0, "{parameter}");
        assert!(tested.stderr.contains(message), "{}", tested.stderr);
    }
    let rows = [
        (
            "",
            "no \"ssl_certificate\" is defined for the \"listen ... quic\" directive",
        ),
        (
            "ssl_certificate localhost.crt; ssl_certificate_key localhost.key; ssl_protocols TLSv1.2;",
            "\"ssl_protocols\" must enable TLSv1.3 for the \"listen ... quic\" directive",
        ),
    ];
    for (rest, message) in rows {
        let tested = https(&format!(
            "server {{ listen 127.0.0.1:%%PORT%% quic; {rest} }}"
        ))
        .test();
        assert!(
            tested.code != 0 && tested.stderr.contains(message),
            "{}",
            tested.stderr
        );
    }
}

/// A firewall that drops UDP shows in nothing else than that clients come back over TCP.
#[test]
fn clients_that_never_come_over_quic_are_told_of() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("location / { return 200 here; }").start();
    let client = Client::new();
    let told = || server.read("error.log").contains("none over QUIC");
    for _ in 0..256 {
        // The first of them has no session yet.
        assert!(!told());
        client.get(&server, "localhost", "/").expect("a response");
    }
    client.get(&server, "localhost", "/").expect("a response");
    assert!(until(|| told().then_some(())).is_some());
}
