//! Where servers listen: the `listen` directive, and how the claims of all servers become sockets.
//!
//! Several servers may share an address; then the host decides among them. Several addresses may share a socket: with
//! `listen *:80` in one server and `listen 10.0.0.1:80` in another there is one socket, and the local address of a
//! connection decides whose it is, as in nginx.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use bstr::{BStr, ByteSlice};
use conf::{Diagnostic, Host, Line, Span};
use rt::engine::ListenerSpec;
use rt::listen::{KeepAlive, ListenAddress, ListenOptions};

use crate::core::ServerConf;
use crate::route::ServerNames;
use crate::site::ServerId;

/// One address of a `listen` directive.
#[derive(Clone, Debug)]
pub struct Listen {
    address: ListenAddress,
    flags: Flags,
    options: ListenOptions,
    /// Whether options of the socket were given, which may be done once for an address.
    set: bool,
    /// The address gets a socket of its own even where a wildcard would cover it.
    bind: bool,
    span: Span,
}

/// What `listen` says of the connections rather than of the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The server takes requests that no name claims.
    pub default_server: bool,
    /// Connections begin with a PROXY protocol header.
    pub proxy_protocol: bool,
}

/// A server's claim to an address.
pub struct Claim {
    listen: Listen,
    server: ServerId,
    names: Vec<crate::route::ServerName>,
    span: Span,
}

/// An address with the servers that answer there.
pub struct Endpoint {
    /// The address as configured.
    pub address: ListenAddress,
    /// Which server a host belongs to.
    pub names: ServerNames,
    /// The server of hosts that nobody claims.
    pub default_server: ServerId,
    /// Connections begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// The socket whose connections these are.
    pub socket: ListenAddress,
    /// Options of that socket.
    pub options: ListenOptions,
}

impl Endpoint {
    /// Whether the host of a request matters.
    pub fn chooses(&self) -> bool {
        !self.names.is_empty()
    }
}

/// The setter of `listen`.
pub fn set(conf: &mut ServerConf, line: &mut Line) -> Result<(), Diagnostic> {
    let addresses = addresses(line)?;
    let mut listen = Listen {
        address: ListenAddress::Unix("".into()),
        flags: Flags::default(),
        options: ListenOptions::default(),
        set: false,
        bind: false,
        span: line.node.name.span,
    };
    for index in 1..line.args().len() {
        parameter(&mut listen, line, index)?;
    }
    for address in addresses {
        let repeated = conf.listens.iter().any(|known| known.address == address);
        if repeated {
            let shown = line.text(0).to_owned();
            return Err(line.error(format!("a duplicate listen {shown}")));
        }
        conf.listens.push(Listen { address, ..listen.clone() });
    }
    Ok(())
}

fn addresses(line: &mut Line) -> Result<Vec<ListenAddress>, Diagnostic> {
    let address = line.listen_address(0)?;
    let first = address.port.unwrap_or(80);
    let last = address.last_port.unwrap_or(first);
    let ips: Vec<IpAddr> = match &address.host {
        Host::Unix(path) => return Ok(vec![ListenAddress::Unix(path.clone())]),
        Host::Any => vec![Ipv4Addr::UNSPECIFIED.into()],
        Host::V4(ip) => vec![(*ip).into()],
        Host::V6(ip) => vec![(*ip).into()],
        Host::Name(name) => resolve(line, name.as_bstr())?,
    };
    let ports = first..=last;
    Ok(ips.iter().flat_map(|ip| ports.clone().map(|port| ListenAddress::Tcp(SocketAddr::new(*ip, port)))).collect())
}

/// Names are looked up while the configuration is read, before anything is served; only then may this wait.
fn resolve(line: &mut Line, name: &BStr) -> Result<Vec<IpAddr>, Diagnostic> {
    let text = line.text(0).to_owned();
    let not_found = |line: &Line| line.error_at(0, format!("host not found in \"{text}\" of the \"listen\" directive"));
    let name = name.to_str().map_err(|_| not_found(line))?;
    let found = (name, 0).to_socket_addrs().map_err(|_| not_found(line))?;
    let mut ips: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    ips.dedup();
    if ips.is_empty() { Err(not_found(line)) } else { Ok(ips) }
}

fn parameter(listen: &mut Listen, line: &mut Line, index: usize) -> Result<(), Diagnostic> {
    let text = line.text(index).to_owned();
    let (name, value) = match text.split_once_str("=") {
        Some((name, value)) => (name.as_bstr(), Some(value.as_bstr())),
        None => (text.as_bstr(), None),
    };
    let invalid = |line: &Line| line.error_at(index, format!("invalid {name} \"{text}\""));
    let number = |line: &Line| -> Result<usize, Diagnostic> {
        value.and_then(|v| v.to_str().ok()?.parse().ok()).filter(|n| *n > 0).ok_or_else(|| invalid(line))
    };
    let size = |line: &Line| -> Result<usize, Diagnostic> {
        value.and_then(|v| base::units::parse_size(v)).map(|n| n as usize).ok_or_else(|| invalid(line))
    };
    match (name.as_bytes(), value.is_some()) {
        (b"default_server" | b"default", false) => {
            listen.flags.default_server = true;
            return Ok(());
        }
        (b"proxy_protocol", false) => {
            listen.flags.proxy_protocol = true;
            return Ok(());
        }
        (b"bind", false) => {}
        (b"backlog", true) => listen.options.backlog = number(line)? as i32,
        (b"rcvbuf", true) => listen.options.receive_buffer = Some(size(line)?),
        (b"sndbuf", true) => listen.options.send_buffer = Some(size(line)?),
        (b"fastopen", true) => listen.options.fast_open = Some(number(line)? as i32),
        (b"reuseport", false) => listen.options.reuse_port = true,
        (b"multipath", false) => listen.options.multipath = true,
        (b"deferred", false) => listen.options.deferred = Some(DEFERRED),
        (b"ipv6only", true) => {
            listen.options.ipv6_only = match value.map(|v| v.as_bytes()) {
                Some(b"on") => true,
                Some(b"off") => false,
                _ => {
                    let value = value.unwrap_or_default();
                    return Err(line.error_at(index, format!("invalid ipv6only flags \"{value}\"")));
                }
            };
        }
        (b"so_keepalive", true) => listen.options.keepalive = keepalive(line, index, value.unwrap_or_default())?,
        (b"setfib" | b"accept_filter", true) => {
            return Err(line.error_at(index, format!("{name} is not supported on this platform")));
        }
        (b"ssl" | b"http2" | b"quic" | b"spdy", false) => {
            let note = "TLS, HTTP/2 and HTTP/3 are not yet in Weir";
            let error = line.error_at(index, format!("the \"{name}\" parameter is known to nginx 1.31, not yet in Weir"));
            return Err(error.note(note));
        }
        _ => return Err(line.error_at(index, format!("invalid parameter \"{text}\""))),
    }
    listen.set = true;
    listen.bind = true;
    Ok(())
}

/// How long the kernel holds back a connection on which nothing comes; nginx's value.
const DEFERRED: Duration = Duration::from_secs(1);

fn keepalive(line: &Line, index: usize, value: &BStr) -> Result<KeepAlive, Diagnostic> {
    let invalid = || line.error_at(index, format!("invalid so_keepalive value: \"{value}\""));
    match value.as_bytes() {
        b"on" => return Ok(KeepAlive::On { idle: None, interval: None, count: None }),
        b"off" => return Ok(KeepAlive::Off),
        _ => {}
    }
    let parts: Vec<&[u8]> = value.split_str(":").collect();
    let [idle, interval, count] = parts[..] else { return Err(invalid()) };
    let time = |text: &[u8]| match text {
        b"" => Ok(None),
        text => base::units::parse_seconds(text).map(Some).ok_or_else(invalid),
    };
    let count = match count {
        b"" => None,
        text => Some(text.to_str().ok().and_then(|t| t.parse().ok()).ok_or_else(invalid)?),
    };
    let (idle, interval) = (time(idle)?, time(interval)?);
    if idle.is_none() && interval.is_none() && count.is_none() {
        return Err(invalid());
    }
    Ok(KeepAlive::On { idle, interval, count })
}

/// A server's claims. One that says nothing of where it listens gets nginx's default.
pub fn claims(core: &ServerConf, server: ServerId, span: Span) -> Vec<Claim> {
    let names = match core.names.is_empty() {
        true => vec![crate::route::ServerName::Exact("".into())],
        false => core.names.clone(),
    };
    let mut listens = core.listens.clone();
    if listens.is_empty() {
        let port = if rt::process::is_root() { 80 } else { 8000 };
        listens.push(Listen {
            address: ListenAddress::Tcp(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)),
            flags: Flags::default(),
            options: ListenOptions::default(),
            set: false,
            bind: false,
            span,
        });
    }
    listens.into_iter().map(|listen| Claim { listen, server, names: names.clone(), span }).collect()
}

/// Puts the claims of all servers together. Contradictions are reported.
pub fn endpoints(claims: Vec<Claim>, line: &mut Line) -> Vec<Arc<Endpoint>> {
    let mut by_address: BTreeMap<ListenAddress, Vec<Claim>> = BTreeMap::new();
    for claim in claims {
        by_address.entry(claim.listen.address.clone()).or_default().push(claim);
    }
    let wildcards: Vec<(ListenAddress, ListenOptions)> = by_address
        .iter()
        .filter(|(address, _)| is_wildcard(address))
        .map(|(address, claims)| (address.clone(), options(claims)))
        .collect();
    let mut endpoints = Vec::new();
    for (address, claims) in by_address {
        let own = claims.iter().any(|claim| claim.listen.bind);
        let covering = wildcards.iter().find(|(wildcard, _)| !own && covers(wildcard, &address));
        let (socket, options) = match covering {
            Some((wildcard, options)) => (wildcard.clone(), options.clone()),
            None => (address.clone(), options(&claims)),
        };
        endpoints.push(Arc::new(endpoint(address, socket, options, claims, line)));
    }
    endpoints
}

fn options(claims: &[Claim]) -> ListenOptions {
    let set = claims.iter().find(|claim| claim.listen.set);
    set.or(claims.first()).map(|claim| claim.listen.options.clone()).unwrap_or_default()
}

fn endpoint(
    address: ListenAddress,
    socket: ListenAddress,
    options: ListenOptions,
    claims: Vec<Claim>,
    line: &mut Line,
) -> Endpoint {
    let mut names = ServerNames::default();
    let report = |line: &mut Line, message: String, span: Span| {
        line.level.report(Diagnostic::error(message, span));
    };
    let mut default_server = None;
    let mut set = false;
    for claim in &claims {
        if claim.listen.set && std::mem::replace(&mut set, true) {
            report(line, format!("duplicate listen options for {address}"), claim.listen.span);
        }
        if claim.listen.flags.default_server {
            if default_server.is_some() {
                report(line, format!("a duplicate default server for {address}"), claim.listen.span);
            }
            default_server = Some(claim.server);
        }
    }
    // A single server takes every host: nothing needs to be looked up, unless a name's groups set variables.
    let has_pattern = |claim: &Claim| claim.names.iter().any(|name| matches!(name, crate::route::ServerName::Regex(_)));
    if claims.len() > 1 || claims.iter().any(has_pattern) {
        for claim in &claims {
            for name in &claim.names {
                if !names.add(name, claim.server) {
                    let shown = name.text();
                    let mut warning = Diagnostic::error(
                        format!("conflicting server name \"{shown}\" on {address}, ignored"),
                        claim.span,
                    );
                    warning.severity = conf::Severity::Warn;
                    line.level.report(warning.place(conf::Place::Unsaid));
                }
            }
        }
    }
    Endpoint {
        names,
        default_server: default_server.unwrap_or(claims[0].server),
        proxy_protocol: claims.iter().any(|claim| claim.listen.flags.proxy_protocol),
        address,
        socket,
        options,
    }
}

fn is_wildcard(address: &ListenAddress) -> bool {
    matches!(address, ListenAddress::Tcp(address) if address.ip().is_unspecified())
}

fn covers(wildcard: &ListenAddress, address: &ListenAddress) -> bool {
    match (wildcard, address) {
        (ListenAddress::Tcp(wildcard), ListenAddress::Tcp(address)) => {
            wildcard.port() == address.port() && wildcard.is_ipv4() == address.is_ipv4()
        }
        _ => false,
    }
}

/// The sockets that these endpoints need.
pub fn listeners(endpoints: &[Arc<Endpoint>]) -> Vec<ListenerSpec> {
    let mut specs: Vec<ListenerSpec> = Vec::new();
    for endpoint in endpoints {
        if !specs.iter().any(|spec| spec.address == endpoint.socket) {
            specs.push(ListenerSpec { address: endpoint.socket.clone(), options: endpoint.options.clone() });
        }
    }
    specs
}

/// The endpoint of a connection that came by `socket` and whose own end is `local`.
pub fn endpoint_of<'a>(
    endpoints: &'a [Arc<Endpoint>],
    socket: &ListenAddress,
    local: impl Fn() -> Option<IpAddr>,
) -> Option<&'a Arc<Endpoint>> {
    let mut candidates = endpoints.iter().filter(|endpoint| endpoint.socket == *socket);
    let first = candidates.next()?;
    if candidates.next().is_none() {
        return Some(first);
    }
    let ip = local().map(unmapped);
    let mut candidates = endpoints.iter().filter(|endpoint| endpoint.socket == *socket);
    let exact = candidates.find(|endpoint| match endpoint.address {
        ListenAddress::Tcp(address) => Some(address.ip()) == ip,
        _ => false,
    });
    exact.or_else(|| endpoints.iter().find(|endpoint| endpoint.address == *socket))
}

fn unmapped(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) if v6 != Ipv6Addr::UNSPECIFIED => v6.to_canonical(),
        other => other,
    }
}
