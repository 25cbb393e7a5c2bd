//! Packets behind the handshake whose frames no library would send. The connection is one of `quinn`, which sends and
//! acknowledges as it should; only what is in its packets is replaced before it is encrypted, and the library takes what
//! it never sent for delivered.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::crypto::{
    self, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
};
use quinn::{ConnectError, ConnectionError, ConnectionId, Side};
use quinn_proto::TransportError;
use quinn_proto::transport_parameters::TransportParameters;
use weir_tests::{Server, skip_on_oracle};

use crate::http3_attacks::memory;
use crate::http3_client::{Http3, Quic, head, varint};
use crate::quic::rebind;
use crate::tls::{CERTIFICATE, Client, https};

const WHY: &str = "the oracle has no QUIC";

/// What an attack may cost in memory, in bytes.
const MEMORY: u64 = 32 << 20;

/// How much is written to have packets sent, in bytes: as much as a stream's window takes.
const WRITTEN: usize = 60_000;

/// Gives the next frame to be sent; `None` while nothing is forged.
type FrameMaker = Option<Box<dyn FnMut() -> Vec<u8> + Send>>;

/// What all keys of a connection share.
type Forgery = Arc<Mutex<FrameMaker>>;

struct ForgedConfig {
    genuine: Arc<QuicClientConfig>,
    forgery: Forgery,
}

impl crypto::ClientConfig for ForgedConfig {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let genuine = Arc::clone(&self.genuine);
        Ok(Box::new(ForgedSession {
            genuine: genuine.start_session(version, server_name, params)?,
            forgery: Arc::clone(&self.forgery),
        }))
    }
}

/// TLS as it should be, with keys that replace what they encrypt.
struct ForgedSession {
    genuine: Box<dyn Session>,
    forgery: Forgery,
}

impl ForgedSession {
    fn forging(&self, pair: KeyPair<Box<dyn PacketKey>>) -> KeyPair<Box<dyn PacketKey>> {
        KeyPair {
            local: Box::new(ForgedKey {
                genuine: pair.local,
                forgery: Arc::clone(&self.forgery),
            }),
            remote: pair.remote,
        }
    }
}

impl Session for ForgedSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        self.genuine.initial_keys(dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.genuine.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.genuine.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.genuine.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.genuine.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.genuine.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.genuine.read_handshake(buf)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.genuine.transport_parameters()
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let keys = self.genuine.write_handshake(buf)?;
        Some(Keys {
            header: keys.header,
            packet: self.forging(keys.packet),
        })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.genuine.next_1rtt_keys()?;
        Some(self.forging(keys))
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.genuine.is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.genuine.export_keying_material(output, label, context)
    }
}

struct ForgedKey {
    genuine: Box<dyn PacketKey>,
    forgery: Forgery,
}

impl PacketKey for ForgedKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let mut forgery = self.forgery.lock().unwrap_or_else(PoisonError::into_inner);
        // Packets with a short header are those behind the handshake (RFC 9000, section 17.3).
        if let Some(next) = forgery.as_mut().filter(|_| buf[0] & 0x80 == 0) {
            let end = buf.len() - self.genuine.tag_len();
            fill(&mut buf[header_len..end], next);
        }
        self.genuine.encrypt(packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.genuine.decrypt(packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.genuine.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.genuine.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.genuine.integrity_limit()
    }
}

/// Fills a packet with frames, and its rest with padding.
fn fill(payload: &mut [u8], next: &mut dyn FnMut() -> Vec<u8>) {
    payload.fill(0);
    let mut rest = payload;
    loop {
        let frame = next();
        let Some((place, after)) = rest.split_at_mut_checked(frame.len()) else {
            return;
        };
        place.copy_from_slice(&frame);
        rest = after;
    }
}

/// A connection whose packets can be forged.
struct ForgedClient {
    quic: Quic,
    forgery: Forgery,
}

impl ForgedClient {
    fn connect(server: &Server) -> ForgedClient {
        let forgery = Forgery::default();
        let client = Client::new();
        let mut tls = client.config().clone();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let config = ForgedConfig {
            genuine: Arc::new(QuicClientConfig::try_from(tls).expect("it has TLS 1.3")),
            forgery: Arc::clone(&forgery),
        };
        let quic = Quic::connect_with(server, &client, |set| {
            *set = quinn::ClientConfig::new(Arc::new(config));
        });
        ForgedClient {
            quic: quic.expect("it listens"),
            forgery,
        }
    }

    /// Sends packets of such frames: some fifty for each of the streams that are opened for it.
    fn send(&self, streams: usize, next: impl FnMut() -> Vec<u8> + Send + 'static) {
        *self.forgery.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(next));
        self.quic.run(async {
            for _ in 0..streams {
                // An error: the server has had enough.
                let Ok((mut send, _receive)) = self.quic.connection.open_bi().await else {
                    return;
                };
                let _ = send.write_all(&[0; WRITTEN]).await;
                let _ = send.finish();
                let _ = send.stopped().await;
            }
        });
    }

    /// Sends such packets until something has happened.
    fn send_until(
        &self,
        has_happened: impl Fn() -> bool,
        next: impl FnMut() -> Vec<u8> + Send + 'static,
    ) {
        *self.forgery.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(next));
        self.quic.run(async {
            let (mut send, _receive) = self.quic.connection.open_bi().await.expect("it is open");
            send.write_all(&[0; WRITTEN]).await.expect("it is open");
            while !has_happened() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }

    /// From now on packets are what the library makes them.
    fn stop_forging(&self) {
        *self.forgery.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The code of the transport with which the server closes the connection.
    fn closed(&self) -> u64 {
        match self.quic.run(self.quic.connection.closed()) {
            ConnectionError::ConnectionClosed(close) => close.error_code.into(),
            other => panic!("{other}"),
        }
    }
}

fn server() -> Server {
    https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% quic; {CERTIFICATE} location / {{ return 200 \"here $remote_port\"; }} location = /pid {{ return 200 $pid; }} }}"
    ))
    .start()
}

/// Another client is served, and the attack has cost no memory to speak of.
fn is_unharmed(server: &Server, before: u64) {
    assert!(Http3::connect(server).get("/").text().starts_with("here "));
    let after = memory(server);
    assert!(after < before + MEMORY, "{before} and then {after}");
}

/// RUSTSEC-2026-0185: single bytes of a stream with a gap between each two, which cannot be joined.
#[test]
fn a_stream_of_gaps_ends_the_connection() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    let before = memory(&server);
    let client = ForgedClient::connect(&server);
    let mut offset = 1_u32;
    client.send(1, move || {
        offset += 2;
        let [_, high, middle, low] = offset.to_be_bytes();
        // STREAM with offset and length, of stream 0.
        vec![0x0e, 0, 0x80, high, middle, low, 1, b'x']
    });
    // INTERNAL_ERROR, with which the library says that there are too many.
    assert_eq!(client.closed(), 1);
    is_unharmed(&server, before);
}

/// CVE-2023-49295 and CVE-2024-22189 of quic-go: challenges of a path, and new ids that retire the ones before, each of which asks
/// for an answer.
#[test]
fn frames_that_ask_for_answers_do_not_pile_up() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    let before = memory(&server);
    let client = ForgedClient::connect(&server);
    let mut number = 0_u64;
    client.send(3, move || {
        number += 1;
        [&[0x1a][..], &number.to_be_bytes()].concat()
    });
    client.stop_forging();
    // It goes on as if nothing had been.
    let mut answer = client.quic.ask(&head("GET", &[]));
    let answer = client.quic.read(&mut answer).expect("no reset");
    assert!(String::from_utf8_lossy(&answer).contains("here "));
    is_unharmed(&server, before);
    let client = ForgedClient::connect(&server);
    let mut number = 0_u32;
    let next = move || {
        number += 1;
        let [_, high, middle, low] = number.to_be_bytes();
        let number = [0x80, high, middle, low];
        let id = [high, middle, low, 1, 2, 3, 4, 5];
        // NEW_CONNECTION_ID: its number, which all before it retire, an id and a token.
        let frame = [&[0x18][..], &number, &number, &[8], &id, &[low; 16]];
        frame.concat()
    };
    // The last word of the server goes to an id that the library has never heard of.
    let is_refused = || server.read("error.log").contains("too many retired CIDs");
    client.send_until(is_refused, next);
    is_unharmed(&server, before);
}

/// Frames that nobody may send here: each ends the connection with the code that RFC 9000 has for it.
#[test]
fn frames_that_are_not_allowed_end_the_connection() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    let before = memory(&server);
    let cases: &[(&[u8], u64)] = &[
        // STREAM beyond the window of its stream, of a stream that is ours, of one beyond the limit.
        (&[0x0e, 0, 0xbf, 0xff, 0xff, 0xff, 1, b'x'], 0x3),
        (&[0x0e, 3, 0, 1, b'x'], 0x5),
        (&[0x0e, 0x80, 0x10, 0, 0, 0, 1, b'x'], 0x4),
        // MAX_STREAM_DATA and STOP_SENDING of a stream that the client cannot receive on; RESET_STREAM of ours.
        (&[0x11, 2, 0x40, 0xff], 0x5),
        (&[0x05, 2, 0], 0x5),
        (&[0x04, 3, 0, 0], 0x5),
        // More streams than there can be.
        (&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], 0x7),
        // An id that was never issued is retired; a new one retires what is newer than itself.
        (&[0x19, 0x7f, 0xff], 0xa),
        (
            &[
                0x18, 5, 6, 4, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ],
            0x7,
        ),
        // What only servers say: NEW_TOKEN, HANDSHAKE_DONE.
        (&[0x07, 1, b'x'], 0xa),
        (&[0x1e], 0xa),
        // An acknowledgement of packets that were never sent; a type that nobody has defined.
        (&[0x02, 0xbf, 0xff, 0xff, 0xff, 0, 0, 0], 0xa),
        (&[0x3f], 0x7),
    ];
    for &(frame, code) in cases {
        let client = ForgedClient::connect(&server);
        client.send(1, move || frame.to_vec());
        assert_eq!(client.closed(), code, "{frame:x?}");
    }
    is_unharmed(&server, before);
}

/// CVE-2026-40460 of nginx: a client asks from an address that it has not shown to be its own, because it answers no challenge.
#[test]
fn a_request_from_an_address_that_is_not_validated_has_the_former_one() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    let client = ForgedClient::connect(&server);
    let port = client
        .quic
        .endpoint
        .local_addr()
        .expect("it is bound")
        .port();
    let (mut send, mut receive) = client.quic.open();
    assert_ne!(rebind(&client.quic), port);
    let request = head("GET", &[]);
    // STREAM with length and end, of stream 0, and nothing else: no acknowledgement, no PATH_RESPONSE.
    let frame = [&[0x0b, 0][..], &varint(request.len() as u64), &request].concat();
    *client
        .forgery
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = Some(Box::new(move || frame.clone()));
    client
        .quic
        .run(async { send.write_all(&[0; 1000]).await.expect("it is open") });
    let answer = client.quic.read(&mut receive).expect("no reset");
    assert!(answer.ends_with(format!("here {port}").as_bytes()));
}
