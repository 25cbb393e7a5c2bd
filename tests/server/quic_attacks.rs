//! First packets that no library would send: properly encrypted, and wrong inside. Each is sent by hand, and afterwards another
//! client is served. That nothing panics, the harness looks for in the log.

use std::net::UdpSocket;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider, kx_group};
use rustls::pki_types::ServerName;
use rustls::quic::{ClientConnection, Keys, Version};
use rustls::{ClientConfig, RootCertStore, Side, SupportedCipherSuite};
use weir_tests::{Server, skip_on_oracle};

use crate::http3_attacks::memory;
use crate::http3_client::Http3;
use crate::tls::{CERTIFICATE, https};

const WHY: &str = "the oracle has no QUIC";

/// The least that a client's first datagram has (RFC 9000, section 14.1), in bytes.
const LEAST: usize = 1200;

fn server() -> Server {
    https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% quic; {CERTIFICATE} location / {{ return 200 here; }} location = /pid {{ return 200 $pid; }} }}"
    ))
    .start()
}

/// A client that is attacked by nobody.
fn is_served(server: &Server) {
    assert_eq!(Http3::connect(server).get("/").text(), "here");
}

/// The first datagram of a client that has chosen this id, with this payload in its Initial packet.
fn initial(id: [u8; 8], payload: &[u8]) -> Vec<u8> {
    let SupportedCipherSuite::Tls13(suite) = cipher_suite::TLS13_AES_128_GCM_SHA256 else {
        panic!("it is of TLS 1.3");
    };
    let quic = suite.quic.expect("it is for QUIC too");
    let keys = Keys::initial(Version::V1, suite, quic, &id, Side::Client).local;
    // Form, fixed bit, type 0, four bytes of packet number.
    let mut packet = vec![0xc3, 0, 0, 0, 1, id.len() as u8];
    packet.extend_from_slice(&id);
    // No id of the client's own, and no token.
    packet.extend_from_slice(&[0, 0]);
    let mut payload = payload.to_vec();
    let head = packet.len() + 2 + 4;
    payload.resize(payload.len().max(LEAST - head - 16), 0);
    let length = (4 + payload.len() + 16) as u16 | 0x4000;
    packet.extend_from_slice(&length.to_be_bytes());
    packet.extend_from_slice(&[0; 4]);
    let tag = keys.packet.encrypt_in_place(0, &packet, &mut payload);
    payload.extend_from_slice(tag.expect("keys encrypt").as_ref());
    let (first, rest) = packet.split_at_mut(1);
    let number = rest.len() - 4;
    keys.header
        .encrypt_in_place(&payload[..16], &mut first[0], &mut rest[number..])
        .expect("a sample of the right size");
    packet.extend(payload);
    packet
}

/// A CRYPTO frame with a ClientHello that has these transport parameters.
fn hello(parameters: &[u8]) -> Vec<u8> {
    let mut provider = default_provider();
    // The hello must fit into a datagram.
    provider.kx_groups = vec![kx_group::X25519];
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("it has TLS 1.3")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h3".to_vec()];
    let name = ServerName::try_from("localhost").expect("a host name");
    let tls = ClientConnection::new(Arc::new(config), Version::V1, name, parameters.to_vec());
    let mut hello = Vec::new();
    // There is no key before the server has answered.
    let _ = tls.expect("good settings").write_hs(&mut hello);
    let mut frame = vec![6, 0];
    frame.extend_from_slice(&(hello.len() as u16 | 0x4000).to_be_bytes());
    frame.extend(hello);
    frame
}

struct Attacker {
    socket: UdpSocket,
    number: u64,
}

impl Attacker {
    fn of(server: &Server) -> Attacker {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket
            .connect(("127.0.0.1", server.port(0)))
            .expect("loopback");
        Attacker { socket, number: 0 }
    }

    /// Sends a payload as a new client.
    fn send(&mut self, payload: &[u8]) {
        self.number += 1;
        let id = (0x7777_0000_0000_0000 | self.number).to_be_bytes();
        // The socket may have heard that nobody wants the last one.
        let _ = self.socket.send(&initial(id, payload));
    }

    /// Whether anything comes back.
    fn is_answered(&self) -> bool {
        let patience = std::time::Duration::from_secs(5);
        self.socket
            .set_read_timeout(Some(patience))
            .expect("not zero");
        self.socket.recv(&mut [0; 2000]).is_ok()
    }
}

/// RUSTSEC-2026-0037, and what is like it: transport parameters that end too early, or say what must not be said.
#[test]
fn transport_parameters_that_are_broken() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    let source = [0x0f, 0];
    // That the packets are right is shown by an answer to a good one.
    let mut attacker = Attacker::of(&server);
    attacker.send(&hello(&source));
    assert!(attacker.is_answered());
    for id in 0..=0x20_u8 {
        // Few enough at once that the server does not ask them for a proof of their address instead.
        is_served(&server);
        for length in [0_u8, 1, 2, 4, 8, 16, 63] {
            // Lengths of one, two and eight bytes where a number is expected.
            for fill in [0, 0x40, 0xff] {
                let mut parameters = source.to_vec();
                parameters.extend([id, length]);
                parameters.extend(std::iter::repeat_n(fill, usize::from(length)));
                attacker.send(&hello(&parameters));
                // And with its end missing.
                if length == 8 {
                    attacker.send(&hello(&parameters[..parameters.len() - 3]));
                }
            }
        }
    }
    is_served(&server);
}

/// CVE-2026-26080 and CVE-2026-26081 of HAProxy: frames that are cut off, or have types and lengths that no frame has.
#[test]
fn first_packets_with_broken_frames() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    let mut attacker = Attacker::of(&server);
    let good = hello(&[0x0f, 0]);
    // The payload is as long as the packet, so that what is cut off is not made up for by padding.
    let cut = |frame: &[u8]| {
        let mut payload = vec![0; (LEAST - 40usize).saturating_sub(frame.len())];
        payload.extend_from_slice(frame);
        payload
    };
    for frame in [
        &[0x40][..],
        &[0x80, 0, 0],
        &[0xc0, 0, 0, 0, 0, 0, 0],
        &[0xff; 8],
        // ACK with more ranges than there are, and of packets that were never sent.
        &[
            2, 0x3f, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0,
        ],
        &[2, 0, 0, 0, 0x3f],
        // CRYPTO at the largest offset, beyond it, and longer than its packet.
        &[6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1],
        &[6, 0x80, 0xff, 0xff, 0xff, 1, 1],
        &[6, 0, 0x7f, 0xff, 1],
        &[6, 0],
        // Frames that an Initial packet must not have: STREAM, NEW_TOKEN, HANDSHAKE_DONE.
        &[8, 0, 0],
        &[7, 1, 1],
        &[0x1e],
        // CONNECTION_CLOSE whose reason is missing.
        &[0x1c, 0, 0, 0x3f],
    ] {
        attacker.send(&cut(frame));
        attacker.send(frame);
        // Behind a good hello, too.
        attacker.send(&[&good[..], frame].concat());
    }
    for end in (0..good.len()).step_by(7) {
        attacker.send(&cut(&good[..end]));
    }
    is_served(&server);
}

/// CVE-2025-54939 of LSQUIC: coalesced and repeated packets before a handshake hold memory without a bound.
#[test]
fn first_packets_that_are_repeated_hold_little() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    let attacker = Attacker::of(&server);
    // Half a hello: the server waits for the rest, and keeps what comes meanwhile.
    let good = hello(&[0x0f, 0]);
    let mut half = vec![6, 0, 0x40, 100];
    half.extend_from_slice(&good[4..104]);
    let first = initial([9; 8], &half);
    let before = memory(&server);
    for _ in 0..3000 {
        // Loopback may have no room.
        let _ = attacker.socket.send(&first);
    }
    for number in 0..500_u64 {
        let id = (0x5555_0000_0000_0000 | number).to_be_bytes();
        let packet = initial(id, &half);
        for _ in 0..4 {
            let _ = attacker.socket.send(&packet);
        }
    }
    is_served(&server);
    let after = memory(&server);
    assert!(after < before + (32 << 20), "{before} and then {after}");
}
