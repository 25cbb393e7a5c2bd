//! Clients of TLS that stop half-way, send rubbish or send too much of what costs them nothing: each loses its connection
//! and nothing else, its end stands in the log once, and others are served meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use rustls::{ClientConfig, ClientConnection, ConnectionTrafficSecrets, StreamOwned};
use rustls::{SupportedProtocolVersion, version};
use weir_tests::{Server, Signal, Site, http, skip_on_oracle, until, whole};

use crate::tls::{CERTIFICATE, Client, ask, body, https, https_files, self_signed};

/// Under TLS 1.2 the one suite whose nonces are made as those of 1.3 are.
const SUITE: &str = "ssl_ciphers ECDHE-ECDSA-CHACHA20-POLY1305;";

const WHY: &str = "OpenSSL has other limits and other words";

fn site(more: &str) -> Site {
    https(&format!(
        "{more} server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} {SUITE} keepalive_timeout 60s;
         location / {{ return 200 on; }} }}"
    ))
}

fn is_served(server: &Server) {
    let answer = Client::new()
        .get(server, "localhost", "/")
        .expect("an answer");
    assert_eq!(body(&answer), "on");
}

/// What a client says first, not yet sent.
fn hello(stream: &mut StreamOwned<ClientConnection, TcpStream>) -> Vec<u8> {
    let mut records = Vec::new();
    stream.conn.write_tls(&mut records).expect("a buffer");
    records
}

/// The server closes. How is left to it: with an alert or without, and what we sent it meanwhile may make a reset of it.
fn ends(mut socket: TcpStream) {
    let mut rest = Vec::new();
    match socket.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

fn count(server: &Server, text: &str) -> usize {
    server.read("error.log").matches(text).count()
}

#[test]
fn hellos_without_an_end_are_given_up_in_their_time() {
    const EACH: usize = 50;
    let server = site("client_header_timeout 1s;").start();
    let client = Client::new();
    let mut stream = client.connect(&server, 0, "localhost");
    let whole = hello(&mut stream);
    let mut silent = Vec::new();
    for length in [1, 5, 6, 100, whole.len() - 1] {
        for _ in 0..EACH {
            let mut socket = TcpStream::connect(("127.0.0.1", server.port(0))).expect("it listens");
            socket.write_all(&whole[..length]).expect("it is taken");
            silent.push(socket);
        }
    }
    is_served(&server);
    let all = silent.len();
    silent.into_iter().for_each(ends);
    let line = "[info]";
    let text = "client timed out (110: Connection timed out) while SSL handshaking";
    let there = until(|| (count(&server, text) >= all).then_some(()));
    assert!(there.is_some(), "{}", server.read("error.log"));
    let log = server.read("error.log");
    let mut lines = log.lines().filter(|each| each.contains(text));
    assert!(lines.all(|each| each.contains(line)), "{log}");
    is_served(&server);
}

#[test]
fn a_streams_hello_without_an_end_is_given_up_in_its_time() {
    if skip_on_oracle("it may be built without stream") {
        return;
    }
    let pair = self_signed("localhost");
    let server = whole(
        "events { } stream { ssl_certificate a.crt; ssl_certificate_key a.key; ssl_handshake_timeout 1s;
         server { listen 127.0.0.1:%%PORT%% ssl; return on; } }",
    )
    .file("a.crt", pair.certificate)
    .file("a.key", pair.key)
    .start();
    let mut socket = TcpStream::connect(("127.0.0.1", server.port(0))).expect("it listens");
    socket.write_all(b"\x16\x03\x01").expect("it is taken");
    ends(socket);
    server.line("error.log", "(110: Connection timed out)");
}

/// One record for each byte of a record.
fn crumbled(record: &[u8]) -> Vec<u8> {
    let (head, content) = record.split_at(5);
    let one = |byte: &u8| [head[0], head[1], head[2], 0, 1, *byte];
    content.iter().flat_map(one).collect()
}

#[test]
fn a_hello_in_the_smallest_pieces_is_understood() {
    let server = site("").start();
    for version in [&version::TLS12, &version::TLS13] {
        let client = Client::with(None, &[version]);
        for (records, segments) in [(true, false), (false, true), (true, true)] {
            let mut stream = client.connect(&server, 0, "localhost");
            let mut bytes = hello(&mut stream);
            if records {
                bytes = crumbled(&bytes);
            }
            stream.sock.set_nodelay(true).expect("a TCP socket");
            match segments {
                true => bytes
                    .iter()
                    .for_each(|byte| stream.sock.write_all(&[*byte]).expect("it is taken")),
                false => stream.sock.write_all(&bytes).expect("it is taken"),
            }
            let answer = ask(&mut stream, "/", "Host: localhost").expect("an answer");
            assert_eq!(body(&answer), "on");
        }
    }
}

/// A message of a handshake that would be longer than any may be, whole and in crumbs: there is a bound to what is kept.
#[test]
fn a_hello_that_is_too_long_is_refused() {
    let server = site("").start();
    for announced in [[0, 0xff, 0xff], [0xff, 0xff, 0xff]] {
        for piece in [1, 16_384] {
            let mut socket = TcpStream::connect(("127.0.0.1", server.port(0))).expect("it listens");
            let mut message = vec![1];
            message.extend_from_slice(&announced);
            message.resize(200_000, 0);
            let records = message.chunks(piece).flat_map(|piece| {
                let length = u16::try_from(piece.len()).expect("it fits").to_be_bytes();
                [&[0x16, 3, 1], &length[..], piece].concat()
            });
            // It may have had enough before all is sent.
            let _ = socket.write_all(&records.collect::<Vec<u8>>());
            ends(socket);
        }
    }
    let there = until(|| (count(&server, "while SSL handshaking") == 4).then_some(()));
    assert!(there.is_some(), "{}", server.read("error.log"));
    is_served(&server);
}

/// A client that sends what it likes under the keys that were agreed on.
struct Forger {
    socket: TcpStream,
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
    /// TLS 1.3: the kind of a record is inside.
    hides_kind: bool,
}

/// Kinds of records.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

impl Forger {
    fn connect(
        server: &Server,
        index: usize,
        version: &'static SupportedProtocolVersion,
    ) -> Forger {
        let client = Client::with(None, &[version]);
        let mut config = ClientConfig::clone(client.config());
        config.enable_secret_extraction = true;
        let mut stream = client
            .configured(config)
            .connect(server, index, "localhost");
        while stream.conn.is_handshaking() || stream.conn.wants_write() {
            stream
                .conn
                .complete_io(&mut stream.sock)
                .expect("a handshake");
        }
        let hides_kind = stream.conn.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_3);
        let secrets = stream.conn.dangerous_extract_secrets();
        let (sequence, secrets) = secrets.expect("it was allowed").tx;
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => panic!("a suite that nobody has named"),
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).expect("a key of its length");
        Forger {
            socket: stream.sock,
            key: LessSafeKey::new(key),
            iv: iv.as_ref().try_into().expect("a nonce of its length"),
            sequence,
            hides_kind,
        }
    }

    /// A record with this content.
    fn record(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let mut nonce = self.iv;
        let sequence = self.sequence.to_be_bytes();
        nonce[4..]
            .iter_mut()
            .zip(sequence)
            .for_each(|(a, b)| *a ^= b);
        self.sequence += 1;
        let mut sealed = content.to_vec();
        if self.hides_kind {
            sealed.push(kind);
        }
        let plain = u16::try_from(sealed.len()).expect("it fits").to_be_bytes();
        let length = u16::try_from(sealed.len() + 16)
            .expect("it fits")
            .to_be_bytes();
        let head = match self.hides_kind {
            true => vec![DATA, 3, 3, length[0], length[1]],
            false => vec![kind, 3, 3, length[0], length[1]],
        };
        let aad = match self.hides_kind {
            true => head.clone(),
            false => [&sequence[..], &[kind, 3, 3], &plain].concat(),
        };
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key
            .seal_in_place_append_tag(nonce, Aad::from(aad), &mut sealed)
            .expect("it fits");
        [head, sealed].concat()
    }

    fn send(&mut self, kind: u8, content: &[u8]) {
        let record = self.record(kind, content);
        // It may have had enough.
        let _ = self.socket.write_all(&record);
    }
}

/// How often a thing is sent that is welcome a few times at most.
const OFTEN: usize = 200;

/// A renegotiation: the hello of another client in a session.
fn another_hello(server: &Server) -> Vec<u8> {
    let client = Client::with(None, &[&version::TLS12]);
    hello(&mut client.connect(server, 0, "localhost")).split_off(5)
}

#[test]
fn what_costs_the_sender_nothing_is_taken_a_few_times_only() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("").start();
    let hello = another_hello(&server);
    let padding = vec![0; 16_000];
    let alert = [1, 90];
    // More to come than may be.
    let longer = [1, 1, 0, 0];
    let (old, new) = (&version::TLS12, &version::TLS13);
    for (name, version, kind, content, word) in [
        ("empty", old, DATA, &[][..], "TooManyEmptyFragments"),
        ("empty", new, DATA, &[], "TooManyEmptyFragments"),
        (
            "warning",
            old,
            ALERT,
            &alert,
            "TooManyWarningAlertsReceived",
        ),
        (
            "warning",
            new,
            ALERT,
            &alert,
            "TooManyWarningAlertsReceived",
        ),
        (
            "hello",
            old,
            HANDSHAKE,
            &hello,
            "TooManyRenegotiationRequests",
        ),
        ("hello", new, HANDSHAKE, &hello, "ClientHello"),
        (
            "longer",
            old,
            HANDSHAKE,
            &longer,
            "HandshakePayloadTooLarge",
        ),
        (
            "longer",
            new,
            HANDSHAKE,
            &longer,
            "HandshakePayloadTooLarge",
        ),
        ("none", new, HANDSHAKE, &[], "TooManyEmptyFragments"),
        ("kind", new, 99, &[1], ""),
        ("padded", new, 0, &padding, ""),
    ] {
        let before = server.read("error.log").len();
        let mut forger = Forger::connect(&server, 0, version);
        for _ in 0..OFTEN {
            forger.send(kind, content);
        }
        is_served(&server);
        ends(forger.socket);
        let said = until(|| {
            let log = server.read("error.log").split_off(before);
            let mut lines = log.lines().map(str::to_owned);
            // What comes along with the last message of a handshake is a matter of the handshake.
            lines.find(|line| line.contains("() failed (SSL: "))
        });
        let line = said.unwrap_or_else(|| panic!("{name}: {}", server.read("error.log")));
        assert!(
            line.contains(word) && line.contains("[info]"),
            "{name}: {line}"
        );
    }
}

#[test]
fn keys_are_changed_a_few_times_in_a_row_only() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("http2 on;").start();
    for protocols in [vec![], vec![b"h2".to_vec()]] {
        let before = server.read("error.log").len();
        let client = Client::with(None, &[&version::TLS13]).offering(&protocols);
        let mut stream = client.connect(&server, 0, "localhost");
        while stream.conn.is_handshaking() || stream.conn.wants_write() {
            stream
                .conn
                .complete_io(&mut stream.sock)
                .expect("a handshake");
        }
        for _ in 0..OFTEN {
            stream.conn.refresh_traffic_keys().expect("TLS 1.3");
            let mut records = Vec::new();
            while stream.conn.wants_write() {
                stream.conn.write_tls(&mut records).expect("a buffer");
            }
            // It may have had enough.
            let _ = stream.sock.write_all(&records);
        }
        is_served(&server);
        ends(stream.sock);
        let said = until(|| {
            let log = server.read("error.log").split_off(before);
            log.contains("TooManyKeyUpdateRequests").then_some(())
        });
        assert!(said.is_some(), "{}", server.read("error.log"));
    }
}

/// Telling which protocol is spoken takes nothing away from the time for a head, and adds nothing: the one that came first,
/// with the shorter time, ends first.
#[test]
fn a_half_sent_first_line_has_one_time() {
    if skip_on_oracle("older ones speak one protocol on a port") {
        return;
    }
    let server = http(
        "log_format port $server_port; access_log access.log port;
         server { listen 127.0.0.1:%%PORT%%; http2 on; client_header_timeout 1s; }
         server { listen 127.0.0.1:%%PORT1%%; client_header_timeout 1900ms; }",
    )
    .start();
    let mut both = server.connect();
    both.send("GE");
    let mut one = server.connect_to(1);
    one.send("GE");
    both.assert_closed();
    one.assert_closed();
    let ports = [server.port(0), server.port(1)].map(|port| port.to_string());
    assert_eq!(server.lines("access.log", 2), ports);
}

/// A cache of sessions that is full forgets the oldest; it refuses nobody, neither those that come nor those it forgot.
#[test]
fn a_full_session_cache_forgets() {
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} ssl_session_tickets off;
         ssl_session_cache shared:small:32k; location / {{ return 200 '$ssl_session_reused'; }} }}"
    ))
    .start();
    let get = |client: &Client| {
        let answer = client.get(&server, "localhost", "/").expect("an answer");
        body(&answer).to_owned()
    };
    let client = || Client::with(None, &[&version::TLS12]);
    let first = client();
    assert_eq!(get(&first), ".");
    assert_eq!(get(&first), "r");
    // 32 KB are room for two hundred at most.
    for _ in 0..300 {
        assert_eq!(get(&client()), ".");
    }
    assert_eq!(get(&first), ".", "it was forgotten");
    assert_eq!(get(&first), "r", "and is known again");
}

#[test]
fn a_ticket_is_good_while_its_key_is_known() {
    if skip_on_oracle("its old worker may take a connection when the new one does already") {
        return;
    }
    let (old, new): (Vec<u8>, Vec<u8>) = ((0..80).collect(), (100..180).collect());
    let block = |round: usize, keys: &str| {
        format!(
            "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} {keys} ssl_session_cache off;
             location / {{ return 200 '$ssl_session_reused {round}'; }} }}"
        )
    };
    let (with_old, with_new) = (
        "ssl_session_ticket_key old.key;",
        "ssl_session_ticket_key new.key;",
    );
    for version in [&version::TLS12, &version::TLS13] {
        let mut server = https_files(http(&block(0, with_old)))
            .file("old.key", &old)
            .file("new.key", &new)
            .start();
        let client = Client::with(None, &[version]);
        let get = |server: &Server, client: &Client| {
            let answer = client.get(server, "localhost", "/").expect("an answer");
            body(&answer).to_owned()
        };
        assert_eq!(get(&server, &client), ". 0");
        let both = format!("{with_new} {with_old}");
        // A client of its own for each look, which leaves the ticket of the other alone.
        for (round, keys, expected) in [(1, both.as_str(), "r 1"), (2, with_new, "r 2")] {
            server.reconfigure(&block(round, keys));
            server.signal(Signal::HUP);
            let new = format!(". {round}");
            let there = until(|| (get(&server, &Client::new()) == new).then_some(()));
            assert!(there.is_some());
            assert_eq!(get(&server, &client), expected, "{round}");
        }
        let stranger = Client::with(None, &[version]);
        server.reconfigure(&block(3, with_old));
        server.signal(Signal::HUP);
        let there = until(|| (get(&server, &Client::new()) == ". 3").then_some(()));
        assert!(there.is_some());
        // Its ticket is of a key that nobody knows any more: a whole handshake, and no error.
        assert_eq!(get(&server, &client), ". 3");
        assert_eq!(get(&server, &stranger), ". 3");
        assert_eq!(get(&server, &stranger), "r 3");
    }
}

/// Keys stand in no answer of the command line, no log and no message.
#[test]
fn keys_are_not_shown() {
    let pair = self_signed("localhost");
    let other = self_signed("other");
    let secret = |text: &str| {
        let keys = [&pair.key, &other.key];
        let mut lines = keys.iter().flat_map(|key| key.lines());
        lines.any(|line| !line.starts_with("--") && text.contains(line))
    };
    let block = |key: &str| {
        format!(
            "ssl_protocols TLSv1.2 TLSv1.3; ssl_certificate a.crt; ssl_certificate_key {key};
             server {{ listen 127.0.0.1:%%PORT%% ssl; location / {{ return 200 on; }} }}"
        )
    };
    let site = |key: &str| {
        http(&block(key))
            .file("a.crt", &pair.certificate)
            .file("a.key", &pair.key)
            .file("o.key", &other.key)
            .file("cut.key", &pair.key[..pair.key.len() / 2])
    };
    for key in ["a.key", "o.key", "cut.key"] {
        for more in [&[][..], &["-T"]] {
            let said = site(key).test_with(more);
            assert!(
                !secret(&said.stdout) && !secret(&said.stderr),
                "{key} {more:?}"
            );
        }
    }
    if skip_on_oracle("it shows what stands behind data:") {
        return;
    }
    let inline = format!("'data:{}'", other.key);
    let said = site(&inline).test();
    assert!(
        said.stderr.contains("key values mismatch"),
        "{}",
        said.stderr
    );
    assert!(!secret(&said.stderr), "{}", said.stderr);
    // A key that a variable has, at a handshake, with all that the debug log tells.
    let block = format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; set $key {inline}; ssl_certificate a.crt; ssl_certificate_key $key; }}
         server {{ listen 127.0.0.1:%%PORT1%% ssl; ssl_certificate a.crt; ssl_certificate_key a.key; }}"
    );
    let server = http(&block)
        .main("error_log error.log debug;")
        .file("a.crt", &pair.certificate)
        .file("a.key", &pair.key)
        .start();
    let refused = Client::new().get(&server, "localhost", "/");
    assert!(refused.is_err());
    server.line("error.log", "while SSL handshaking");
    let mut stream = Client::new().connect(&server, 1, "localhost");
    ask(&mut stream, "/", "Host: localhost").expect("an answer");
    server.signal(Signal::HUP);
    server.line("error.log", "reconfiguring");
    assert!(!secret(&server.read("error.log")));
}
