//! The connection for a try: an idle one, or a new one, with TLS if the protocol demands it.

use std::io;

use net::upstream::{
    HandshakeParameters, PeerConnection, PeerLease, PeerStream, ReuseTerms, ServerChoice,
    UpstreamTlsError,
};
use net::{ConnectSettings, Transport};
use rt::net::SocketAddress;

use super::exchange_log::{self, ExchangeStage};
use super::http3_connection;
use super::no_response::NoResponse;
use super::protocol::UpstreamProtocol;
use super::retry::TryFailure;
use super::upstream_settings::{SettingsRef, UpstreamSettings};
use crate::ledger::LedgerPhase;
use crate::request::Request;

/// What the connections of all tries of an exchange have in common.
pub(super) struct PeerConnector {
    /// Idle connections are shared only between exchanges with the same tag.
    tag: u64,
    /// The parameters of TLS; `None`: plain connections.
    tls: Option<Box<HandshakeParameters>>,
    /// The local address of `…_bind`.
    local: Option<SocketAddress>,
    /// Connections are of QUIC.
    quic: bool,
}

impl PeerConnector {
    pub(super) fn new(
        request: &mut Request,
        settings: &UpstreamSettings,
        protocol: &dyn UpstreamProtocol,
        tag: u64,
    ) -> PeerConnector {
        let tls = protocol.secure_host().map(|host| {
            let dialect = protocol.dialect();
            Box::new(settings.secure.handshake_parameters(request, host, dialect))
        });
        let local = local_address(request, settings);
        let quic = protocol.uses_quic();
        PeerConnector {
            tag,
            tls,
            local,
            quic,
        }
    }

    /// Applies a script's choice of connection parameters, for this try and later ones.
    pub(super) fn apply_choice(&mut self, choice: ServerChoice) {
        self.local = choice.from.or(self.local.take());
        if choice.without_tls {
            self.tls = None;
        }
        if let (Some(name), Some(tls)) = (choice.tls_name, &mut self.tls) {
            tls.set_name(name.as_ref());
        }
    }

    /// Connects to the leased server.
    pub(super) async fn connect(
        &self,
        request: &mut Request,
        settings: &SettingsRef,
        protocol: &dyn UpstreamProtocol,
        lease: &PeerLease,
    ) -> Result<Box<PeerConnection>, TryFailure> {
        // An idle connection fits only if the request could have opened it: same tag, same protocol, same TLS
        // parameters (certificate, server name). Otherwise a response could come from a host that was not verified.
        let reuse = ReuseTerms {
            tag: self.tag,
            dialect: protocol.dialect(),
            secure: match (self.tls.as_deref(), self.quic) {
                (None, _) => 0,
                (Some(tls), false) => tls.key(),
                // A QUIC connection cannot move to another loop.
                (Some(tls), true) => http3_connection::key_on_this_loop(tls.key()),
            },
        };
        if !protocol.is_tunnel() {
            // It ends: each turn takes a connection out of the pool.
            while let Some(connection) = lease.take_idle_connection(reuse).await {
                if !self.quic || connection.stream.begin_exchange().await {
                    return Ok(connection);
                }
            }
        }
        // With `keepalive` this is rare, so its state is boxed and does not enlarge the future of every exchange.
        Box::pin(self.open(request, settings, lease, reuse)).await
    }

    /// Makes a new connection.
    async fn open(
        &self,
        request: &mut Request,
        settings: &UpstreamSettings,
        lease: &PeerLease,
        reuse: ReuseTerms,
    ) -> Result<Box<PeerConnection>, TryFailure> {
        if self.quic {
            return self.open_quic(request, settings, lease, reuse).await;
        }
        let mut options = ConnectSettings {
            timeout: settings.connect_timeout,
            keepalive: settings.socket_keepalive,
            receive_buffer: usize::try_from(settings.socket_rcvbuf).unwrap_or(usize::MAX),
            send_buffer: usize::try_from(settings.socket_sndbuf).unwrap_or(usize::MAX),
            ..ConnectSettings::default()
        };
        options.from = self.local.clone();
        options.transparent = settings.bind.as_ref().is_some_and(|bind| bind.transparent);
        match net::connect(lease.address(), &options).await {
            Ok(stream) => {
                let mut transport = Transport::plain(stream);
                if let Some(tls) = &self.tls {
                    request.ledger.enter(LedgerPhase::UpstreamTls);
                    handshake(request, settings, &mut transport, tls).await?;
                }
                Ok(PeerConnection::new(PeerStream::Socket(transport), reuse))
            }
            // Logged later, together with the decision about another try.
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(TryFailure::TimedOut(ExchangeStage::Connecting))
            }
            Err(error) => {
                exchange_log::connect_failed(request, lease.address(), &error);
                Err(TryFailure::Broken)
            }
        }
    }
}

impl PeerConnector {
    /// Makes a new QUIC connection, and opens the exchange's stream on it.
    async fn open_quic(
        &self,
        request: &mut Request,
        settings: &UpstreamSettings,
        lease: &PeerLease,
        reuse: ReuseTerms,
    ) -> Result<Box<PeerConnection>, TryFailure> {
        let doing = ExchangeStage::Handshaking;
        let (Some(tls), SocketAddress::Inet(to)) = (&self.tls, lease.address()) else {
            let line = "HTTP/3 needs an https:// URL and a server with an IP address";
            exchange_log::log_exchange_failure(request, line, ExchangeStage::Connecting);
            return Err(TryFailure::Final(NoResponse::new(500)));
        };
        request.ledger.enter(LedgerPhase::UpstreamTls);
        let connecting =
            settings
                .secure
                .connect_quic(*to, self.local.as_ref(), tls, settings.connect_timeout);
        let connected = connecting
            .await
            .map_err(|error| handshake_failure(request, error, doing))?;
        let stream = http3_connection::begin(connected);
        match stream.begin_exchange().await {
            true => Ok(PeerConnection::new(stream, reuse)),
            false => {
                let line = "upstream closed the quic connection";
                exchange_log::log_exchange_failure(request, line, doing);
                Err(TryFailure::Broken)
            }
        }
    }
}

/// Performs the TLS handshake on a new connection.
async fn handshake(
    request: &Request,
    settings: &UpstreamSettings,
    transport: &mut Transport,
    tls: &HandshakeParameters,
) -> Result<(), TryFailure> {
    let doing = ExchangeStage::Handshaking;
    let handshake = settings
        .secure
        .handshake(transport, tls, settings.connect_timeout);
    handshake
        .await
        .map_err(|error| handshake_failure(request, error, doing))
}

/// Logs why a handshake failed, as far as that is not logged later.
fn handshake_failure(
    request: &Request,
    error: UpstreamTlsError,
    doing: ExchangeStage,
) -> TryFailure {
    match error {
        UpstreamTlsError::TimedOut => TryFailure::TimedOut(doing),
        UpstreamTlsError::Peer(line) => {
            exchange_log::log_exchange_failure(request, line, doing);
            TryFailure::Broken
        }
        // Something is wrong with this server's configuration, so other upstreams would fail in the same way.
        UpstreamTlsError::Ours(line) => {
            exchange_log::log_exchange_failure(request, line, doing);
            TryFailure::Final(NoResponse::new(500))
        }
    }
}

/// The value of `…_bind` for this request.
fn local_address(request: &mut Request, settings: &UpstreamSettings) -> Option<SocketAddress> {
    let bind = settings.bind.as_ref()?;
    let text = request.value(&bind.address);
    if text.is_empty() {
        // As in nginx, an empty value means that the system chooses.
        return None;
    }
    let address = super::parse_local_address(&text);
    if address.is_none() {
        exchange_log::invalid_local_address(request, text.as_ref());
    }
    address
}
