//! `proxy_pass` in stream: passes sessions to another server, TCP or UDP.
//!
//! ```text
//! mod      directives; which group a session goes to; one try after the other
//! relay    bytes between two connections, both ways, with splice when there are many
//! packets  datagrams between a client and a server
//! secure   TLS to servers
//! ```

mod choosing;
mod packets;
mod rate;
mod relay;
pub(crate) mod secure;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::stream::module::{Answer, status};
use ::stream::upstream::{Record, Try};
use ::stream::{Module, Outcome, Session, Step};
use bstr::{BStr, BString};
use conf::contexts::STREAM_AND_SERVER;
use conf::{
    Arity, Diagnostic, Directive, Expression, Host, Line, Repeat, STREAM_SERVER, Setter, Table,
};
use net::ConnectOptions;
use net::Transport;
use net::upstream::{Group, Origin, Pick, Request, Selection, Times};
use rt::error_log::{Errno, Level};
use rt::net::{Address, UdpSocket, UnixPath};

use self::choosing::Choosing;
use super::upstream::Groups;

pub(crate) static MODULE: Module = Module {
    name: "proxy",
    doc: "Passes TCP connections and UDP datagrams to upstream servers.",
    server: &DIRECTIVES,
    answer: Some(Answer {
        when: |server| server.confs.get::<Conf>().pass.is_some(),
        handler: |session| Step::later(async move { Outcome::Status(pass(session).await) }),
    }),
    ..Module::EMPTY
};

const fn row(
    name: &'static str,
    syntax: &'static str,
    default: Option<&'static str>,
    doc: &'static str,
    set: Setter<Conf>,
) -> Directive<Conf> {
    Directive {
        name,
        syntax,
        default,
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc,
        set,
    }
}

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "proxy_pass",
        syntax: "address",
        default: None,
        contexts: STREAM_SERVER,
        since: "0.1",
        doc: "The upstream server: `host:port`, `unix:path`, the name of an `upstream`, or a text with variables that \
              yields one of these.",
        set: Setter::Custom(Arity::ONE, Repeat::Once, proxy_pass),
    },
    row(
        "proxy_bind",
        "address [transparent] | off",
        None,
        "The local address of upstream connections. With `transparent` it may be an address of another machine, such \
         as that of the client.",
        Setter::Custom(Arity::between(1, 2), Repeat::Once, bind),
    ),
    row(
        "proxy_socket_keepalive",
        "on | off",
        Some("off"),
        "Whether to enable TCP keep-alive probes on upstream connections.",
        Setter::Flag(|c| &mut c.socket_keepalive),
    ),
    row(
        "proxy_socket_rcvbuf",
        "size",
        Some("0"),
        "The receive buffer size of upstream connections; 0 leaves it to the system.",
        Setter::Size(|c| &mut c.socket_rcvbuf),
    ),
    row(
        "proxy_socket_sndbuf",
        "size",
        Some("0"),
        "The send buffer size of upstream connections; 0 leaves it to the system.",
        Setter::Size(|c| &mut c.socket_sndbuf),
    ),
    row(
        "proxy_connect_timeout",
        "time",
        Some("60s"),
        "The timeout for connecting to an upstream server.",
        Setter::Millis(|c| &mut c.connect_timeout),
    ),
    row(
        "proxy_timeout",
        "time",
        Some("10m"),
        "The timeout of a session without data in either direction.",
        Setter::Millis(|c| &mut c.timeout),
    ),
    row(
        "proxy_buffer_size",
        "size",
        Some("16k"),
        "The size of the read buffer for each direction. Sustained transfers are spliced in the kernel.",
        Setter::Size(|c| &mut c.buffer_size),
    ),
    row(
        "proxy_downstream_buffer",
        "size",
        None,
        "The old name of `proxy_buffer_size`.",
        Setter::Custom(Arity::ONE, Repeat::Once, buffer_size),
    ),
    row(
        "proxy_upstream_buffer",
        "size",
        None,
        "The old name of `proxy_buffer_size`.",
        Setter::Custom(Arity::ONE, Repeat::Once, buffer_size),
    ),
    row(
        "proxy_upload_rate",
        "rate",
        Some("0"),
        "The rate limit for reading from the client, in bytes per second; 0 means no limit. May contain variables.",
        Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
            c.upload_rate = rate::read(line)?;
            Ok(())
        }),
    ),
    row(
        "proxy_download_rate",
        "rate",
        Some("0"),
        "The rate limit for reading from the upstream server, in bytes per second; 0 means no limit. May contain \
         variables.",
        Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
            c.download_rate = rate::read(line)?;
            Ok(())
        }),
    ),
    row(
        "proxy_requests",
        "number",
        Some("0"),
        "The number of client datagrams per session; the next one starts another session. 0 means all belong to one \
         session.",
        Setter::Number(|c| &mut c.requests, 0, i64::MAX),
    ),
    row(
        "proxy_responses",
        "number",
        None,
        "The number of response datagrams expected for each client datagram: the session ends when they have arrived. \
         If not set, it ends by `proxy_timeout`.",
        Setter::Custom(Arity::ONE, Repeat::Once, |c, line| {
            c.responses = Some(line.number(0, 0, i64::MAX)?.unsigned_abs());
            Ok(())
        }),
    ),
    row(
        "proxy_next_upstream",
        "on | off",
        Some("on"),
        "Whether to try the next server of the group if the connection to one fails.",
        Setter::Flag(|c| &mut c.next_upstream),
    ),
    row(
        "proxy_next_upstream_tries",
        "number",
        Some("0"),
        "The maximum number of servers to try; 0 means all.",
        Setter::Number(|c| &mut c.next_upstream_tries, 0, i64::MAX),
    ),
    row(
        "proxy_next_upstream_timeout",
        "time",
        Some("0"),
        "The maximum time for trying servers; 0 means no limit.",
        Setter::Millis(|c| &mut c.next_upstream_timeout),
    ),
    row(
        "proxy_protocol",
        "on | v2 | off",
        Some("off"),
        "Whether to send a PROXY protocol header with the client address to the upstream server; `on` means version 1.",
        Setter::Word(&["off", "on", "v2"], |c, i| {
            c.proxy_protocol = [Header::None, Header::V1, Header::V2][i]
        }),
    ),
    row(
        "proxy_half_close",
        "on | off",
        Some("off"),
        "Whether to keep one direction open after the other has been closed.",
        Setter::Flag(|c| &mut c.half_close),
    ),
]);

#[derive(Clone, Default)]
struct Conf {
    pass: Option<Pass>,
    bind: Option<Bind>,
    socket_keepalive: bool,
    socket_rcvbuf: u64,
    socket_sndbuf: u64,
    connect_timeout: Duration,
    timeout: Duration,
    buffer_size: u64,
    upload_rate: Expression,
    download_rate: Expression,
    requests: i64,
    responses: Option<u64>,
    next_upstream: bool,
    next_upstream_tries: i64,
    next_upstream_timeout: Duration,
    proxy_protocol: Header,
    half_close: bool,
}

#[derive(Clone)]
enum Pass {
    Group(Arc<Group>),
    Text(Expression),
}

#[derive(Clone)]
struct Bind {
    address: Expression,
    transparent: bool,
}

/// Which header a connection to the server begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Header {
    #[default]
    None,
    V1,
    V2,
}

fn proxy_pass(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    if Expression::has_variables(line.text(0)) {
        conf.pass = Some(Pass::Text(line.expression(0)?));
        return Ok(());
    }
    let place = line.sources().place(line.node.span).unwrap_or_default();
    let groups = line.shared::<Groups>().clone();
    let reference = groups
        .refer(line.text(0), 0, &place)
        .map_err(|message| crate::shared::upstream::no_address(line, message))?;
    if reference.group.settings.origin == (Origin::Url { port: Some(0) }) {
        return Err(line.error_at(0, format!("no port in upstream \"{}\"", line.text(0))));
    }
    crate::shared::upstream::warn_of(&reference, line);
    conf.pass = Some(Pass::Group(reference.group));
    Ok(())
}

fn buffer_size(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    conf.buffer_size = line.size(0)?;
    line.warn(format!(
        "the \"{}\" directive is deprecated, use the \"proxy_buffer_size\" directive instead",
        line.name()
    ));
    Ok(())
}

fn bind(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    if line.args().len() == 1 && line.text(0) == "off" {
        conf.bind = None;
        return Ok(());
    }
    let transparent = match line.get(1) {
        None => false,
        Some(word) if word.is("transparent") => true,
        Some(_) => return Err(line.invalid_parameter(1)),
    };
    let address = line.expression(0)?;
    if address.constant().is_some() && local_address(line.text(0)).is_none() {
        return Err(line.error_at(0, format!("invalid address \"{}\"", line.text(0))));
    }
    conf.bind = Some(Bind {
        address,
        transparent,
    });
    Ok(())
}

/// An IP address, perhaps with a port.
fn local_address(text: &[u8]) -> Option<Address> {
    if let Some(ip) = conf::address::ip(text) {
        return Some(SocketAddr::new(ip, 0).into());
    }
    let address = conf::Address::peer(text).ok()?;
    Some(SocketAddr::new(address.ip()?, address.port.unwrap_or(0)).into())
}

/// Passes a session; gives the status that it ends with.
async fn pass(session: &mut Session) -> u16 {
    let conf = session.conf::<Conf>();
    session.upstream = Some(Record::default());
    let from = match &conf.bind {
        None => None,
        Some(bind) => {
            let text = session.value(&bind.address);
            let address = local_address(&text);
            if address.is_none() && !text.is_empty() {
                session.error(format_args!("invalid local address \"{text}\""));
            }
            address
        }
    };
    let options = ConnectOptions {
        from,
        transparent: conf.bind.as_ref().is_some_and(|bind| bind.transparent),
        timeout: conf.connect_timeout,
        keepalive: conf.socket_keepalive,
        receive_buffer: usize::try_from(conf.socket_rcvbuf).unwrap_or(0),
        send_buffer: usize::try_from(conf.socket_sndbuf).unwrap_or(0),
    };
    let group = match &conf.pass {
        None => return status::INTERNAL_SERVER_ERROR,
        Some(Pass::Group(group)) => Arc::clone(group),
        Some(Pass::Text(text)) => match find_group(session, text).await {
            Some(group) => group,
            None => return status::INTERNAL_SERVER_ERROR,
        },
    };
    try_all(session, &conf, &group, &options).await
}

/// The group that a text made of variables refers to; why there is none is logged.
async fn find_group(session: &mut Session, text: &Expression) -> Option<Arc<Group>> {
    let text = session.value(text);
    let address = match conf::Address::peer(&text) {
        Ok(address) => address,
        Err(why) => {
            session.error(format_args!("{why} in upstream \"{text}\""));
            return None;
        }
    };
    let unix = match &address.host {
        Host::Unix(path) => Some(Address::Unix(UnixPath::new(path))),
        _ => None,
    };
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
    let groups = site.main_confs.get::<Groups>();
    if let Some(group) = groups.find_url(host, address.port, address.port.is_some()) {
        return Some(group);
    }
    if let Some(unix) = unix {
        return Some(Arc::new(Group::of_addresses(text, vec![unix])));
    }
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
    Some(Arc::new(Group::of_addresses(host.to_owned(), addresses)))
}

async fn resolve(session: &mut Session, host: &BStr) -> Option<Vec<std::net::IpAddr>> {
    let core = &session.server().core;
    let (resolver, timeout) = (Arc::clone(&core.resolver), core.resolver_timeout);
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

/// A connection to a server.
enum Upstream {
    Stream(Transport),
    Datagrams(UdpSocket),
}

/// How a session that reached a server ended.
struct Ended {
    status: u16,
    times: Times,
    /// The server did not do what it should: it counts as failed.
    failed: bool,
}

/// Tries the servers of a group until one can be reached, and runs the session on it.
async fn try_all(
    session: &mut Session,
    conf: &Conf,
    group: &Arc<Group>,
    options: &ConnectOptions,
) -> u16 {
    let mut group = Arc::clone(group);
    let mut selection = select(session, &group);
    let limit = u32::try_from(conf.next_upstream_tries).unwrap_or(0);
    if limit > 0 {
        selection.limit_tries(limit);
    }
    let mut choosing = Choosing::of(&group, &selection, limit);
    let mut options = options.clone();
    let began = rt::now();
    loop {
        session.action = "connecting to upstream";
        let since = rt::now();
        if let Err(status) = choosing.choose(session, &mut group, &mut selection, &mut options) {
            new_try(session, group.name());
            return status;
        }
        let lease = match selection.pick() {
            Pick::Peer(lease) => lease,
            Pick::None(_) => {
                new_try(session, group.name());
                session.error(format_args!("no live upstreams"));
                return status::BAD_GATEWAY;
            }
        };
        new_try(session, BStr::new(lease.name()));
        let failure = match connect(session, conf, &group, lease.address(), &options).await {
            Ok(upstream) => {
                let connected = rt::now().saturating_duration_since(since);
                last(session).connect = Some(connected);
                if !session.client.is_udp() {
                    lease.connected(connected);
                }
                log_connected(session, &upstream);
                let Ended {
                    status,
                    times,
                    failed,
                } = match upstream {
                    Upstream::Stream(stream) => relay::run(session, conf, stream, since).await,
                    Upstream::Datagrams(socket) => packets::run(session, conf, socket, since).await,
                };
                last(session).session = Some(rt::now().saturating_duration_since(since));
                let outcome = if failed {
                    net::upstream::Outcome::Failed(times)
                } else {
                    net::upstream::Outcome::Ok(times)
                };
                selection.release(lease, outcome);
                return status;
            }
            Err(failure) => failure,
        };
        last(session).session = Some(rt::now().saturating_duration_since(since));
        let released = selection.release(lease, net::upstream::Outcome::Failed(Times::default()));
        if released.disabled {
            session.log(
                Level::Warn,
                format_args!("upstream server temporarily disabled"),
            );
        }
        let patience = conf.next_upstream_timeout;
        let too_late =
            !patience.is_zero() && rt::now().saturating_duration_since(began) >= patience;
        let is_last = choosing.failed(&selection);
        match failure {
            Failure::Final(status) => return status,
            Failure::Server if is_last || !conf.next_upstream || too_late => {
                return status::BAD_GATEWAY;
            }
            Failure::Server => {}
        }
    }
}

/// What there is to choose from in a group, for this session.
fn select(session: &mut Session, group: &Arc<Group>) -> Selection {
    let key = match group.settings.balance.key() {
        Some(key) => session.value(key),
        None => BString::default(),
    };
    group.select(&Request {
        key: &key,
        client: session.remote.address.ip(),
        sticky: b"",
    })
}

/// Why a server could not be reached. It has been logged.
enum Failure {
    /// Another one may be.
    Server,
    /// No other one can change it: the session ends with this status.
    Final(u16),
}

/// Connects to a server, by TLS where that is wanted.
async fn connect(
    session: &mut Session,
    conf: &Conf,
    group: &Group,
    address: &Address,
    options: &ConnectOptions,
) -> Result<Upstream, Failure> {
    let connected = match session.client.is_udp() {
        true => connect_datagrams(address, options).map(Upstream::Datagrams),
        false => connect_stream(session, address, options)
            .await
            .map(Upstream::Stream),
    };
    let mut upstream = connected.map_err(|error| {
        log_failure(session, &error);
        Failure::Server
    })?;
    if let Upstream::Stream(transport) = &mut upstream
        && secure::is_wanted(session)
    {
        secure::begin(session, conf, transport, group.name()).await?;
    }
    Ok(upstream)
}

fn connect_datagrams(address: &Address, options: &ConnectOptions) -> io::Result<UdpSocket> {
    match &options.from {
        Some(from) => UdpSocket::connect_from(address, from),
        None => UdpSocket::connect(address),
    }
}

async fn connect_stream(
    session: &Session,
    address: &Address,
    options: &ConnectOptions,
) -> io::Result<Transport> {
    let stream = net::connect(address, options).await?;
    if !session.server().core.tcp_nodelay && !address.is_unix() {
        stream.set_nodelay(false)?;
    }
    Ok(Transport::plain(stream))
}

fn new_try(session: &mut Session, address: &BStr) {
    let record = session.upstream.get_or_insert_default();
    record.tries.push(Try {
        address: address.to_owned(),
        ..Try::default()
    });
}

/// The present try.
fn last(session: &mut Session) -> &mut Try {
    let tries = &mut session.upstream.get_or_insert_default().tries;
    if tries.is_empty() {
        tries.push(Try::default());
    }
    tries
        .last_mut()
        .expect("there is one, or was made one just now")
}

fn log_failure(session: &Session, error: &io::Error) {
    // A time that is over has no number of the system's.
    if error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none() {
        session.error(format_args!(
            "upstream timed out (110: Connection timed out)"
        ));
    } else {
        session.error(format_args!("connect() failed{}", Errno(error)));
    }
}

fn log_connected(session: &mut Session, upstream: &Upstream) {
    if !session.logger().enabled(Level::Info) && !session.client.debug {
        return;
    }
    let (udp, local) = match upstream {
        Upstream::Stream(stream) => ("", stream.socket().local_addr().cloned().ok()),
        Upstream::Datagrams(socket) => ("udp ", socket.local_addr().ok()),
    };
    let Some(local) = local else { return };
    let server = last(session).address.clone();
    session.log_plainly(
        Level::Info,
        format_args!("{udp}proxy {local} connected to {server}"),
    );
}

/// The PROXY protocol header that tells the server who the client is; empty when there is to be none.
fn proxy_header(session: &Session, header: Header) -> Vec<u8> {
    let inet = |address: Address| match address {
        Address::Inet(address) => Some(address),
        Address::Unix(_) => None,
    };
    let source = inet(session.remote.address.clone());
    let destination = inet(session.client.local());
    let mut out = Vec::new();
    match header {
        Header::None => {}
        Header::V1 => proto::proxy_protocol::write_v1(source, destination, &mut out),
        Header::V2 => proto::proxy_protocol::write_v2(source, destination, &[], &mut out),
    }
    out
}

/// The numbers of a session at its end, for the line that says how it ended.
fn traffic(session: &mut Session) -> String {
    let Try { sent, received, .. } = last(session).clone();
    format!(
        "bytes from/to client:{}/{}, bytes from/to upstream:{received}/{sent}",
        session.received,
        session.client.sent.get()
    )
}
