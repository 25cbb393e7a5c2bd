//! QUIC as a client: a connection to an upstream server. It has a socket of its own, connected to the server, so that the system
//! reports a port where nobody listens, and the server's datagrams need not be told apart.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use quinn_proto::crypto::rustls::HandshakeData;
use rt::net::{SocketAddress, UdpSocket};
use rustls::pki_types::CertificateDer;

use super::arrival::UnfinishedHandshake;
use super::closed::QuicClosed;
use super::connection::QuicConnection;
use super::endpoint::QuicEndpoint;
use super::settings::{CongestionControl, QuicTransport};
use crate::tls::{ClientName, ClientSettings, TlsConfigError};

/// How much of a response a server may send before it is read, in bytes.
const STREAM_WINDOW: u64 = 256 * 1024;

/// After how long without a packet a connection ends. Those that are kept end sooner, by `keepalive_timeout`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Why there is no connection.
#[derive(Debug)]
pub enum QuicConnectError {
    /// The socket could not be opened.
    Socket(io::Error),
    /// The settings do not allow it.
    Settings(TlsConfigError),
    /// The server has refused it, or does not answer.
    Closed(QuicClosed),
}

impl fmt::Display for QuicConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuicConnectError::Socket(error) => {
                write!(f, "no socket for QUIC{}", base::ErrnoText(error))
            }
            QuicConnectError::Settings(error) => f.write_str(&error.message),
            QuicConnectError::Closed(QuicClosed::ByTransport(code, words)) => {
                write!(
                    f,
                    "quic connection to upstream failed with code {code:#x}: {words}"
                )
            }
            QuicConnectError::Closed(QuicClosed::ByApplication(code)) => {
                write!(f, "upstream closed the quic connection with code {code:#x}")
            }
            QuicConnectError::Closed(QuicClosed::Unreachable) => f.write_str(
                "nobody listens for QUIC at the upstream's port (111: Connection refused)",
            ),
            QuicConnectError::Closed(closed) => write!(f, "{closed}"),
        }
    }
}

/// Connects to a server from this address, or one that the system chooses. The certificate is not judged here:
/// [`QuicConnection::tls`] has what was found. The caller limits the time.
pub(crate) async fn connect_quic(
    to: SocketAddr,
    from: Option<&SocketAddress>,
    settings: &ClientSettings,
    name: ClientName<'_>,
) -> Result<Rc<QuicConnection>, QuicConnectError> {
    let (config, name) = settings
        .prepare_quic(name)
        .map_err(QuicConnectError::Settings)?;
    let address = SocketAddress::Inet(to);
    let socket = match from {
        Some(from) => UdpSocket::connect_from(&address, from),
        None => UdpSocket::connect(&address),
    };
    let opened = socket
        .map(UdpSocket::into_fd)
        .and_then(QuicEndpoint::open_client);
    let endpoint = opened.map_err(QuicConnectError::Socket)?;
    let transport = QuicTransport {
        // Servers begin no requests.
        max_streams: 0,
        stream_window: STREAM_WINDOW,
        idle_timeout: IDLE_TIMEOUT,
        congestion: CongestionControl::Cubic,
        segments: true,
    };
    let mut config = quinn_proto::ClientConfig::new(Arc::new(config));
    config.transport_config(Arc::new(transport.config()));
    let link = endpoint
        .connect(config, to, &name)
        .map_err(|error| QuicConnectError::Closed(QuicClosed::ByTransport(0, error.to_string())))?;
    let unfinished = UnfinishedHandshake(Cell::new(Some(Rc::clone(&link))));
    let connected = std::future::poll_fn(|context| link.poll_connected(context)).await;
    connected.map_err(QuicConnectError::Closed)?;
    unfinished.0.take();
    let (protocol, chain) = {
        let core = link.core.borrow();
        let session = core.crypto_session();
        let data = session.handshake_data();
        let protocol = data.and_then(|data| data.downcast::<HandshakeData>().ok()?.protocol);
        let chain = session.peer_identity();
        let chain = chain.and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
        (protocol, chain.map(|chain| *chain).unwrap_or_default())
    };
    let tls = settings.quic_session(protocol, chain);
    Ok(QuicConnection::new(link, tls))
}
