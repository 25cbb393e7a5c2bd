//! The connection for a try: an idle one, or a new one, with TLS if the protocol demands it.

use std::io;

use net::upstream::{Asked, Connection, Lease, NotSecure, Reuse, ServerChoice};
use net::{ConnectOptions, Transport};
use rt::net::Address;

use super::log::{self, Doing};
use super::no_response::NoResponse;
use super::protocol::Protocol;
use super::retry::TryFailure;
use super::settings::{Settings, SettingsRef};
use crate::request::Request;

/// What the connections of all tries of an exchange have in common.
pub(super) struct Connector {
    /// Idle connections are shared only between exchanges with the same tag.
    tag: u64,
    /// The parameters of TLS; `None`: plain connections.
    tls: Option<Asked>,
    /// The local address of `…_bind`.
    local: Option<Address>,
}

impl Connector {
    pub(super) fn new(
        request: &mut Request,
        settings: &Settings,
        protocol: &dyn Protocol,
        tag: u64,
    ) -> Connector {
        let tls = protocol.secure_host().map(|host| {
            let dialect = protocol.dialect();
            settings.secure.asked(request, host, dialect)
        });
        let local = local_address(request, settings);
        Connector { tag, tls, local }
    }

    /// Applies a script's choice of connection parameters, for this try and later ones.
    pub(super) fn follow(&mut self, choice: ServerChoice) {
        self.local = choice.from.or(self.local.take());
        if choice.without_tls {
            self.tls = None;
        }
    }

    /// Connects to the leased server.
    pub(super) async fn connect(
        &self,
        request: &Request,
        settings: &SettingsRef,
        protocol: &dyn Protocol,
        lease: &Lease,
    ) -> Result<Connection, TryFailure> {
        // An idle connection fits only if the request could have opened it: same tag, same protocol, same TLS
        // parameters (certificate, server name). Otherwise a response could come from a host that was not verified.
        let reuse = Reuse {
            tag: self.tag,
            dialect: protocol.dialect(),
            secure: self.tls.as_ref().map_or(0, Asked::key),
        };
        if !protocol.is_tunnel()
            && let Some(connection) = lease.reuse(reuse).await
        {
            return Ok(connection);
        }
        // With `keepalive` this is rare, so its state is boxed and does not enlarge the future of every exchange.
        Box::pin(self.open(request, settings, lease, reuse)).await
    }

    /// Makes a new connection.
    async fn open(
        &self,
        request: &Request,
        settings: &Settings,
        lease: &Lease,
        reuse: Reuse,
    ) -> Result<Connection, TryFailure> {
        let mut options = ConnectOptions {
            timeout: settings.connect_timeout,
            keepalive: settings.socket_keepalive,
            receive_buffer: usize::try_from(settings.socket_rcvbuf).unwrap_or(usize::MAX),
            send_buffer: usize::try_from(settings.socket_sndbuf).unwrap_or(usize::MAX),
            ..ConnectOptions::default()
        };
        options.from = self.local.clone();
        options.transparent = settings.bind.as_ref().is_some_and(|bind| bind.transparent);
        match net::connect(lease.address(), &options).await {
            Ok(stream) => {
                let mut transport = Transport::plain(stream);
                if let Some(tls) = &self.tls {
                    handshake(request, settings, &mut transport, tls).await?;
                }
                Ok(Connection::new(transport, reuse))
            }
            // Logged later, together with the decision about another try.
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(TryFailure::TimedOut(Doing::Connecting))
            }
            Err(error) => {
                log::connect_failed(request, lease.address(), &error);
                Err(TryFailure::Broken)
            }
        }
    }
}

/// Performs the TLS handshake on a new connection.
async fn handshake(
    request: &Request,
    settings: &Settings,
    transport: &mut Transport,
    tls: &Asked,
) -> Result<(), TryFailure> {
    let doing = Doing::Handshaking;
    let handshake = settings
        .secure
        .handshake(transport, tls, settings.connect_timeout);
    match handshake.await {
        Ok(()) => Ok(()),
        Err(NotSecure::TimedOut) => Err(TryFailure::TimedOut(doing)),
        Err(NotSecure::Peer(line)) => {
            log::failed(request, line, doing);
            Err(TryFailure::Broken)
        }
        // Something is wrong with this server's configuration, so other upstreams would fail in the same way.
        Err(NotSecure::Ours(line)) => {
            log::failed(request, line, doing);
            Err(TryFailure::Final(NoResponse::new(500)))
        }
    }
}

/// The value of `…_bind` for this request.
fn local_address(request: &mut Request, settings: &Settings) -> Option<Address> {
    let bind = settings.bind.as_ref()?;
    let text = request.value(&bind.address);
    if text.is_empty() {
        // As in nginx, an empty value means that the system chooses.
        return None;
    }
    let address = super::parse_local_address(&text);
    if address.is_none() {
        log::invalid_local_address(request, text.as_ref());
    }
    address
}
