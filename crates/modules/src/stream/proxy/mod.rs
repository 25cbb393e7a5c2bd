//! `proxy_pass` in stream: passes TCP and UDP sessions to another server.
//!
//! ```text
//! settings directives and what they make of a configuration
//! mod      which group a session goes to; one try after the other
//! relay    bytes between two connections, both ways, with splice when there are many
//! packets  datagrams between a client and a server
//! secure   TLS to servers
//! ```
//!
//! ```nginx
//! server {
//!     listen                53 udp;
//!     proxy_pass            dns;
//!     proxy_responses       1;
//!     proxy_connect_timeout 1s;
//! }
//! ```
//!
//! One server after the other is tried until one is connected; from then on the session stays
//! there, whatever happens, since bytes that have been passed on cannot be taken back.

mod datagrams;
mod rate;
mod relay;
pub(crate) mod secure;
mod settings;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::stream::module::{StreamContentHandler, status};
use ::stream::upstream::{SessionTry, SessionUpstreams, StreamGroups};
use ::stream::{SessionOutcome, SessionStep, StreamModule, StreamSession};
use base::ErrnoText;
use bstr::{BStr, BString};
use conf::{AddressHost, Expression};
use host::error_log::LogLevel;
use net::ConnectSettings;
use net::Transport;
use net::resolver::ResolverConf;
use net::upstream::{
    NoChoice, PeerLease, PeerOutcome as Verdict, PeerSelection, PeerTraffic, SelectionRequest,
    UpstreamGroup, UpstreamTimes,
};
use rt::net::{SocketAddress, UdpSocket, UnixPath};

use self::settings::{Conf, DIRECTIVES, ProxyProtocolHeader, StreamPass, local_address};

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "proxy",
    doc: "Passes TCP connections and UDP datagrams to upstream servers.",
    server: &DIRECTIVES,
    content_handler: Some(StreamContentHandler {
        when: |server| server.confs.get::<Conf>().pass.is_some(),
        handler: |session| {
            SessionStep::later(async move { SessionOutcome::Status(pass(session).await) })
        },
    }),
    ..StreamModule::EMPTY
};

/// The handler: passes a session on, and returns the status that it ends with.
async fn pass(session: &mut StreamSession) -> u16 {
    let conf = session.conf::<Conf>();
    // Before anything can fail, so that `$upstream_addr` and its kin are set for every session that
    // came here.
    session.upstream = Some(SessionUpstreams::default());
    let from = match &conf.bind {
        None => None,
        Some(bind) => {
            let text = session.value(&bind.address);
            let address = local_address(&text);
            // An empty value turns the binding off; a wrong one is logged, and the connection made
            // without it.
            if address.is_none() && !text.is_empty() {
                session.error(format_args!("invalid local address \"{text}\""));
            }
            address
        }
    };
    let options = ConnectSettings {
        from,
        transparent: conf.bind.as_ref().is_some_and(|bind| bind.transparent),
        timeout: conf.connect_timeout,
        keepalive: conf.socket_keepalive,
        receive_buffer: usize::try_from(conf.socket_rcvbuf).unwrap_or(0),
        send_buffer: usize::try_from(conf.socket_sndbuf).unwrap_or(0),
    };
    let group = match &conf.pass {
        None => return status::INTERNAL_SERVER_ERROR,
        Some(StreamPass::Group(group)) => Arc::clone(group),
        Some(StreamPass::Text(text)) => match find_group(session, text).await {
            Some(group) => group,
            None => return status::INTERNAL_SERVER_ERROR,
        },
    };
    try_servers(session, &conf, &group, &options).await
}

/// The group that a text with variables refers to: one of the configuration, or one made from an
/// address. The reason why there is none is logged.
async fn find_group(session: &mut StreamSession, text: &Expression) -> Option<Arc<UpstreamGroup>> {
    let text = session.value(text);
    let address = match conf::HostPort::parse_peer(&text) {
        Ok(address) => address,
        Err(why) => {
            session.error(format_args!("{why} in upstream \"{text}\""));
            return None;
        }
    };
    let unix = match &address.host {
        AddressHost::Unix(path) => Some(SocketAddress::Unix(UnixPath::new(path))),
        _ => None,
    };
    // The name without the port, as it appears in the configuration.
    let host = match address.port {
        Some(_) => BStr::new(
            &text[..text
                .iter()
                .rposition(|byte| *byte == b':')
                .unwrap_or(text.len())],
        ),
        None => BStr::new(&text[..]),
    };
    let site = std::rc::Rc::clone(&session.site);
    let groups = site.main_confs.get::<StreamGroups>();
    // A block of that name comes first: it may have balancing, and its names are resolved already.
    if let Some(group) = groups.find_url(host, address.port, address.port.is_some()) {
        return Some(group);
    }
    if let Some(unix) = unix {
        return Some(Arc::new(UpstreamGroup::of_addresses(text, vec![unix])));
    }
    // Stream has no protocol with a default port.
    let Some(port) = address.port.filter(|port| *port > 0) else {
        session.error(format_args!("no port in upstream \"{host}\""));
        return None;
    };
    let ips = match address.ip() {
        Some(ip) => vec![ip],
        None => resolve(session, host).await?,
    };
    let addresses = ips
        .into_iter()
        .map(|ip| SocketAddr::new(ip, port).into())
        .collect();
    Some(Arc::new(UpstreamGroup::of_addresses(
        host.to_owned(),
        addresses,
    )))
}

/// Resolves a host name with the resolver of the server.
async fn resolve(session: &mut StreamSession, host: &BStr) -> Option<Vec<std::net::IpAddr>> {
    let ResolverConf { resolver, timeout } = session.conf::<ResolverConf>().clone();
    session.action = "resolving upstream name";
    match resolver.lookup_host(host, timeout).await {
        Ok(ips) => Some(ips),
        Err(error) if error.is_no_resolver() => {
            session.error(format_args!("no resolver defined to resolve {host}"));
            None
        }
        Err(error) => {
            session.error(format_args!("{host} could not be resolved {error}"));
            None
        }
    }
}

/// A connection to an upstream server.
enum UpstreamConnection {
    Stream(Transport),
    Datagrams(UdpSocket),
}

/// How a session ended that had a connection to a server.
struct SessionEnd {
    status: u16,
    /// For balancing by response time.
    times: UpstreamTimes,
    /// Whether this counts as a failure of the server.
    failed: bool,
}

/// Gives the place at a server back after a session, with what it says of the server. Returns the status of the session.
fn release_ended(
    session: &mut StreamSession,
    selection: &mut PeerSelection,
    mut lease: PeerLease,
    ended: SessionEnd,
) -> u16 {
    let status = ended.status;
    let bytes = current_try(session);
    lease.note_traffic(PeerTraffic {
        // A session has no status of its own that a server has sent.
        status: 0,
        sent: bytes.sent,
        received: bytes.received,
    });
    selection.release_peer(lease, ended.into());
    status
}

impl From<SessionEnd> for Verdict {
    fn from(ended: SessionEnd) -> Verdict {
        match ended.failed {
            true => Verdict::Failed(ended.times),
            false => Verdict::Ok(ended.times),
        }
    }
}

/// Tries the servers of a group until one is connected, and runs the session on it.
async fn try_servers(
    session: &mut StreamSession,
    conf: &Conf,
    group: &Arc<UpstreamGroup>,
    options: &ConnectSettings,
) -> u16 {
    let mut selection = select(session, group);
    selection.limit_tries(u32::try_from(conf.next_upstream_tries).unwrap_or(0));
    let mut options = options.clone();
    // For `proxy_next_upstream_timeout`, which is about all tries together.
    let began = rt::now();
    loop {
        session.action = "connecting to upstream";
        // Per try: `$upstream_connect_time` does not count earlier ones.
        let since = rt::now();
        match selection.ask_chooser(session, 0) {
            Ok(None) => {}
            // An address chosen for an earlier try stays, unless the script names another one.
            Ok(Some(choice)) => options.from = choice.from.or(options.from.take()),
            Err(NoChoice { status }) => {
                new_try(session, selection.group().name());
                return status;
            }
        }
        let lease = match selection.try_pick() {
            Ok(lease) => lease,
            Err(_) => {
                new_try(session, selection.group().name());
                // All are down, or have failed too often.
                session.error(format_args!("no live upstreams"));
                return status::BAD_GATEWAY;
            }
        };
        new_try(session, BStr::new(lease.name()));
        // From here on `$upstream_addr` has this server, whatever comes of it.
        let connected = {
            let group = selection.group();
            connect(session, conf, group, lease.address(), &options).await
        };
        let failure = match connected {
            Ok(upstream) => {
                let connected = elapsed(since);
                current_try(session).connect = Some(connected);
                // Connecting a UDP socket takes no time and says nothing about the server.
                if !session.client.is_udp() {
                    lease.connected(connected);
                }
                // A session that had a connection is never tried elsewhere: the server may have
                // acted upon its bytes.
                let ended = run(session, conf, upstream, since).await;
                return release_ended(session, &mut selection, lease, ended);
            }
            Err(failure) => failure,
        };
        current_try(session).session = Some(elapsed(since));
        // A failed connect counts towards `max_fails`. Its times do not count: how long a refusal took says nothing
        // about the server.
        let released = selection.release_peer(lease, Verdict::Failed(UpstreamTimes::default()));
        // `max_fails` has been reached.
        if released.disabled {
            session.log(
                LogLevel::Warn,
                format_args!("upstream server temporarily disabled"),
            );
        }
        // The limit is only checked between tries: a connect in progress has a timeout of its own.
        let patience = conf.next_upstream_timeout;
        let too_late = !patience.is_zero() && elapsed(began) >= patience;
        let is_last = selection.tries_left() == 0;
        match failure {
            // The mistake is in our configuration, so another server would fail in the same way.
            ConnectFailure::Final(status) => return status,
            ConnectFailure::Server if is_last || !conf.next_upstream || too_late => {
                return status::BAD_GATEWAY;
            }
            ConnectFailure::Server => {}
        }
    }
}

/// Runs the session on a connected server.
async fn run(
    session: &mut StreamSession,
    conf: &Conf,
    upstream: UpstreamConnection,
    since: Instant,
) -> SessionEnd {
    log_connected(session, &upstream);
    let ended = match upstream {
        UpstreamConnection::Stream(stream) => relay::run(session, conf, stream, since).await,
        UpstreamConnection::Datagrams(socket) => datagrams::run(session, conf, socket, since).await,
    };
    current_try(session).session = Some(elapsed(since));
    ended
}

fn elapsed(since: Instant) -> Duration {
    rt::now().saturating_duration_since(since)
}

/// The selection of servers of a group for this session.
fn select(session: &mut StreamSession, group: &Arc<UpstreamGroup>) -> PeerSelection {
    let key = match group.settings.method().key() {
        Some(key) => session.value(key),
        None => BString::default(),
    };
    let request = SelectionRequest {
        key: &key,
        client: session.remote.address.ip(),
        sticky: b"",
    };
    PeerSelection::new(Arc::clone(group), &request)
}

/// Why a server cannot be used. It has been logged.
enum ConnectFailure {
    /// Another one may work.
    Server,
    /// No other one would help: the session ends with this status.
    Final(u16),
}

/// Connects to a server, with TLS if that is configured.
async fn connect(
    session: &mut StreamSession,
    conf: &Conf,
    group: &UpstreamGroup,
    address: &SocketAddress,
    options: &ConnectSettings,
) -> Result<UpstreamConnection, ConnectFailure> {
    let connected = match session.client.is_udp() {
        true => connect_datagrams(address, options).map(UpstreamConnection::Datagrams),
        false => connect_stream(session, address, options)
            .await
            .map(UpstreamConnection::Stream),
    };
    let mut upstream = connected.map_err(|error| {
        log_failure(session, &error);
        ConnectFailure::Server
    })?;
    // TLS is only for streams: DTLS is not supported.
    if let UpstreamConnection::Stream(transport) = &mut upstream
        && secure::uses_tls(session)
    {
        // Its failure is like a failed connect: no byte of the session has been sent, so another server can be
        // tried.
        secure::handshake(session, conf, transport, group.name()).await?;
    }
    Ok(upstream)
}

/// Connects a UDP socket, so that only datagrams of this server are received.
fn connect_datagrams(address: &SocketAddress, options: &ConnectSettings) -> io::Result<UdpSocket> {
    match &options.from {
        Some(from) => UdpSocket::connect_from(address, from),
        None => UdpSocket::connect(address),
    }
}

/// Connects a TCP or unix socket.
async fn connect_stream(
    session: &StreamSession,
    address: &SocketAddress,
    options: &ConnectSettings,
) -> io::Result<Transport> {
    let stream = net::connect(address, options).await?;
    // Connections are made with it on.
    if !session.server().core.tcp_nodelay && !address.is_unix() {
        stream.set_nodelay(false)?;
    }
    Ok(Transport::plain(stream))
}

/// Adds a try to the record behind `$upstream_addr` and its kin.
fn new_try(session: &mut StreamSession, address: &BStr) {
    let record = session.upstream.get_or_insert_default();
    record.tries.push(SessionTry {
        address: address.to_owned(),
        ..SessionTry::default()
    });
}

/// The current try.
fn current_try(session: &mut StreamSession) -> &mut SessionTry {
    let tries = &mut session.upstream.get_or_insert_default().tries;
    if tries.is_empty() {
        tries.push(SessionTry::default());
    }
    tries
        .last_mut()
        .expect("there is one, or was made one just now")
}

/// Logs why a server could not be connected, in nginx's words.
fn log_failure(session: &StreamSession, error: &io::Error) {
    // A timeout of ours has no errno; nginx logs it as ETIMEDOUT.
    if error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none() {
        session.error(format_args!(
            "upstream timed out (110: Connection timed out)"
        ));
    } else {
        session.error(format_args!("connect() failed{}", ErrnoText(error)));
    }
}

/// Logs the local address of the connection, with which it can be found in captures.
fn log_connected(session: &mut StreamSession, upstream: &UpstreamConnection) {
    // The local address costs a system call.
    if !session.logger().enabled(LogLevel::Info) && !session.client.debug {
        return;
    }
    let (udp, local) = match upstream {
        UpstreamConnection::Stream(stream) => ("", stream.socket().local_addr().cloned().ok()),
        UpstreamConnection::Datagrams(socket) => ("udp ", socket.local_addr().ok()),
    };
    let Some(local) = local else { return };
    let server = current_try(session).address.clone();
    session.log_plainly(
        LogLevel::Info,
        format_args!("{udp}proxy {local} connected to {server}"),
    );
}

/// The PROXY protocol header with the client's address; empty if it is off.
fn proxy_header(session: &StreamSession, header: ProxyProtocolHeader) -> Vec<u8> {
    // A unix socket counts as an unknown address.
    let inet = |address: SocketAddress| match address {
        SocketAddress::Inet(address) => Some(address),
        SocketAddress::Unix(_) => None,
    };
    let source = inet(session.remote.address.clone());
    let destination = inet(session.client.local());
    let mut out = Vec::new();
    match header {
        ProxyProtocolHeader::None => {}
        ProxyProtocolHeader::V1 => proto::proxy_protocol::write_v1(source, destination, &mut out),
        ProxyProtocolHeader::V2 => {
            proto::proxy_protocol::write_v2(source, destination, &[], &mut out)
        }
    }
    out
}

/// The byte counts of a session, for the line that is logged at its end.
fn traffic(session: &mut StreamSession) -> String {
    let SessionTry { sent, received, .. } = current_try(session).clone();
    format!(
        "bytes from/to client:{}/{}, bytes from/to upstream:{received}/{sent}",
        session.received,
        session.client.sent.get()
    )
}
