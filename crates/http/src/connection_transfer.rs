//! The state that goes with a client connection when it moves to another loop or process between two requests.
//!
//! The other process may be another version of the program, so the state begins with the version of its format. A
//! connection whose state is not understood is closed, as an idle one always may be (RFC 9112, section 9.5).
//!
//! ```text
//! version u8 = 1
//! requests u64 · bytes sent u64 · age ms u64 · keepalive ms u64 · keepalive_min ms u64
//! input: length u32, bytes           what has been read of the next request
//! PROXY header: 0, or 1 and          source, destination: text length u32, text, port u16, ip known u8
//!                                    TLVs: length u32, bytes
//! ```
//!
//! Numbers are little-endian. The addresses of the connection itself are asked of its socket. Within one process the
//! state of TLS travels beside these bytes.

use std::any::Any;
use std::rc::Rc;
use std::time::Duration;

use host::engine::MoveScope;
use host::loop_slots::MovingConnection;
use net::tls::TlsSession;
use net::{Transport, TransportParts};
use proto::proxy_protocol::{DecodedProxyHeader, ProxyEndpoint};
use rt::net::SocketAddress;

use crate::accepted_connection::AcceptedConnection;
use crate::byte_stream::ByteStream;
use crate::client::HttpClient;

const VERSION: u8 = 1;

/// The state of a connection between two requests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionState {
    /// Requests served on it.
    pub requests: u64,
    /// Bytes sent on it.
    pub sent: u64,
    /// How long ago it was accepted.
    pub age: Duration,
    /// How long it may wait for its next request.
    pub keepalive_timeout: Duration,
    /// How long it may still wait when the server stops.
    pub keepalive_min_timeout: Duration,
    /// What has been read of the next request.
    pub input: Vec<u8>,
    /// The PROXY protocol header that preceded the connection.
    pub proxy: Option<Box<DecodedProxyHeader>>,
    /// The server name of the TLS hello. Not part of the bytes: see [`LocalState`].
    pub asked_name: Option<Box<str>>,
    /// Its number, if it comes from another loop of this process. Not part of the bytes either.
    pub number: Option<u64>,
}

/// What can only move to another loop of the process.
struct LocalState {
    number: u64,
    tls: Option<Box<TlsSession>>,
    passed_at: Option<Box<SocketAddress>>,
    asked_name: Option<Box<str>>,
}

/// Whether it can be packed. If something still works for a request that has been answered (a mirror, a fetch for the
/// cache), the state of TLS cannot be taken out of the shared client.
pub(crate) fn is_movable(client: &Rc<HttpClient>) -> bool {
    client.tls().is_none() || Rc::strong_count(client) == 1
}

/// Packs a connection that waits for a request; its life on this loop is over. `None`: it cannot move that far, or
/// there are no descriptors left. Then it closes.
pub(crate) fn pack_connection(
    client: Rc<HttpClient>,
    bytes: Rc<ByteStream>,
    scope: MoveScope,
) -> Option<MovingConnection> {
    if !client.control.may_move(scope) {
        bytes.transport.say_goodbye();
        return None;
    }
    let socket = client.socket.clone();
    let facts = ConnectionState::take(&client, &bytes).encode();
    let mut state = LocalState {
        number: client.number,
        tls: None,
        passed_at: client.passed_at.clone(),
        asked_name: client.asked_name.take().map(|asked| asked.name),
    };
    // The client refers to the byte stream, too, which has to be the only owner below.
    drop(client);
    let descriptor = match Rc::try_unwrap(bytes) {
        Ok(bytes) => {
            let TransportParts { fd, tls } = bytes.transport.into_parts();
            state.tls = tls;
            fd
        }
        // A mirror or a fetch still refers to the connection, though it cannot use it any more. The TLS state inside
        // cannot be taken.
        Err(bytes) if bytes.transport.is_tls() => {
            bytes.transport.say_goodbye();
            return None;
        }
        // Without TLS there is only the descriptor, and that can be duplicated.
        Err(bytes) => bytes.transport.socket().move_away().ok()?,
    };
    Some(MovingConnection {
        socket,
        descriptor,
        facts,
        state: (scope == MoveScope::Process).then(|| Box::new(state) as Box<dyn Any + Send>),
    })
}

/// Unpacks a connection on its new loop; `None` if its state is not understood.
pub(crate) fn unpack_connection(
    moving: MovingConnection,
) -> Option<(Box<AcceptedConnection>, ConnectionState)> {
    let mut state = ConnectionState::decode(&moving.facts)?;
    let local = moving
        .state
        .and_then(|state| state.downcast::<LocalState>().ok());
    let (mut tls, mut passed_at) = (None, None);
    if let Some(local) = local {
        tls = local.tls;
        passed_at = local.passed_at;
        state.asked_name = local.asked_name;
        state.number = Some(local.number);
    }
    let fd = moving.descriptor;
    let transport = Transport::from_parts(TransportParts { fd, tls }).ok()?;
    let accepted = AcceptedConnection::new(transport, moving.socket, passed_at);
    Some((accepted, state))
}

impl ConnectionState {
    /// The state of a connection that waits for a request. Its input is taken.
    pub(crate) fn take(client: &HttpClient, bytes: &ByteStream) -> ConnectionState {
        ConnectionState {
            requests: client.requests.get(),
            sent: bytes.sent.get(),
            age: rt::now().saturating_duration_since(client.accepted),
            keepalive_timeout: client.keepalive_timeout.get(),
            keepalive_min_timeout: client.keepalive_min_timeout.get(),
            input: bytes.input.take(),
            proxy: client.proxy.get().cloned(),
            asked_name: None,
            number: None,
        }
    }

    /// Serializes the part that can move to another process.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        let times = [self.age, self.keepalive_timeout, self.keepalive_min_timeout];
        let numbers = [self.requests, self.sent].into_iter();
        for number in numbers.chain(times.map(millis)) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        put_bytes(&self.input, &mut out);
        match &self.proxy {
            None => out.push(0),
            Some(header) => {
                out.push(1);
                put_endpoint(&header.source, &mut out);
                put_endpoint(&header.destination, &mut out);
                put_bytes(&header.tlvs, &mut out);
            }
        }
        out
    }

    /// Reads what [`ConnectionState::encode`] wrote; `None` if it is another format.
    pub(crate) fn decode(bytes: &[u8]) -> Option<ConnectionState> {
        let (version, mut rest) = bytes.split_first()?;
        if *version != VERSION {
            return None;
        }
        let rest = &mut rest;
        let mut state = ConnectionState {
            requests: take_number(rest)?,
            sent: take_number(rest)?,
            age: take_millis(rest)?,
            keepalive_timeout: take_millis(rest)?,
            keepalive_min_timeout: take_millis(rest)?,
            input: take_bytes(rest)?.to_vec(),
            ..ConnectionState::default()
        };
        let [proxied] = *take(rest)?;
        if proxied != 0 {
            state.proxy = Some(Box::new(DecodedProxyHeader {
                source: take_endpoint(rest)?,
                destination: take_endpoint(rest)?,
                tlvs: take_bytes(rest)?.to_vec(),
            }));
        }
        // Bytes left over mean that this is not the format that the version claims.
        rest.is_empty().then_some(state)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(bytes.len()).expect("buffers of heads are far below 4 GB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_endpoint(endpoint: &ProxyEndpoint, out: &mut Vec<u8>) {
    put_bytes(endpoint.text.as_bytes(), out);
    out.extend_from_slice(&endpoint.port.to_le_bytes());
    out.push(endpoint.ip.is_some().into());
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(taken)
}

fn take_number(rest: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*take(rest)?))
}

fn take_millis(rest: &mut &[u8]) -> Option<Duration> {
    Some(Duration::from_millis(take_number(rest)?))
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = u32::from_le_bytes(*take(rest)?);
    let (bytes, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = after;
    Some(bytes)
}

fn take_endpoint(rest: &mut &[u8]) -> Option<ProxyEndpoint> {
    let text = String::from_utf8(take_bytes(rest)?.to_vec()).ok()?;
    let port = u16::from_le_bytes(*take(rest)?);
    let [known] = *take(rest)?;
    // The address is parsed again from its text; a name that was no address then is none now.
    let ip = text.parse().ok().filter(|_| known != 0);
    Some(ProxyEndpoint { text, ip, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> ConnectionState {
        let endpoint = |text: &str| ProxyEndpoint {
            text: text.to_owned(),
            ip: text.parse().ok(),
            port: 80,
        };
        ConnectionState {
            requests: 3,
            sent: 1 << 40,
            age: Duration::from_millis(70_000),
            keepalive_timeout: Duration::from_secs(75),
            keepalive_min_timeout: Duration::ZERO,
            input: b"GET / HT".to_vec(),
            proxy: Some(Box::new(DecodedProxyHeader {
                source: endpoint("192.0.2.1"),
                destination: endpoint("odd"),
                tlvs: vec![1, 2, 3],
            })),
            asked_name: None,
            number: None,
        }
    }

    #[test]
    fn the_state_travels_whole() {
        for state in [state(), ConnectionState::default()] {
            assert_eq!(ConnectionState::decode(&state.encode()), Some(state));
        }
    }

    #[test]
    fn a_damaged_state_is_refused() {
        let bytes = state().encode();
        for cut in 0..bytes.len() {
            assert_eq!(ConnectionState::decode(&bytes[..cut]), None, "cut at {cut}");
        }
        let mut newer = bytes.clone();
        newer[0] = VERSION + 1;
        assert_eq!(ConnectionState::decode(&newer), None);
        let mut longer = bytes;
        longer.push(0);
        assert_eq!(ConnectionState::decode(&longer), None);
    }
}
