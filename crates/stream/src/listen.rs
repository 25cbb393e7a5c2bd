//! Where servers listen: the `listen` directive, and how the claims of all servers become sockets.
//!
//! Several addresses may share a socket: with `listen *:53` in one server and `listen 10.0.0.1:53` in another there is
//! one, and the local address of a connection decides whose it is, as in nginx.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use bstr::BString;
use conf::{Diagnostic, Line, Span};
use net::listen::{covers, is_wildcard};
use net::server_name::{ServerName, ServerNames};
use rt::engine::ListenerSpec;
use rt::listen::{ListenAddress, ListenOptions};

use crate::core::ServerConf;
use crate::session::Pattern;
use crate::site::ServerId;

/// One address of a `listen` directive.
#[derive(Clone, Debug)]
pub struct Listen {
    address: ListenAddress,
    default_server: bool,
    proxy_protocol: bool,
    tls: bool,
    options: ListenOptions,
    /// Whether options of the socket were given, which may be done once for an address. The address gets a socket of
    /// its own then, even where a wildcard would cover it.
    set: bool,
    span: Span,
}

/// A server's claim to an address.
pub struct Claim {
    listen: Listen,
    server: ServerId,
    names: Vec<ServerName<Pattern>>,
    span: Span,
}

/// An address with the server that answers there.
pub struct Endpoint {
    /// The address as configured.
    pub address: ListenAddress,
    /// Which server the name that a TLS client asks for belongs to.
    pub names: ServerNames<ServerId, Pattern>,
    /// The server of all other sessions here.
    pub server: ServerId,
    /// Connections begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// Connections are encrypted.
    pub tls: bool,
    /// The socket whose sessions these are.
    pub socket: ListenAddress,
    /// Options of that socket.
    pub options: ListenOptions,
}

/// Parameters that make no sense for datagrams.
const STREAM_ONLY: [&str; 7] = [
    "ssl",
    "fastopen",
    "backlog",
    "deferred",
    "multipath",
    "so_keepalive",
    "proxy_protocol",
];

/// The setter of `listen`.
pub fn set(conf: &mut ServerConf, line: &mut Line) -> Result<(), Diagnostic> {
    let mut listen = Listen {
        address: ListenAddress::Unix("".into()),
        default_server: false,
        proxy_protocol: false,
        tls: false,
        options: ListenOptions::default(),
        set: false,
        span: line.node.name.span,
    };
    let mut udp = false;
    for index in 1..line.args().len() {
        match &**line.text(index) {
            b"default_server" => listen.default_server = true,
            b"udp" => udp = true,
            b"proxy_protocol" => listen.proxy_protocol = true,
            b"ssl" => listen.tls = true,
            _ if net::listen::socket_parameter(&mut listen.options, line, index)? => {
                listen.set = true
            }
            text => {
                return Err(line.error_at(
                    index,
                    format!("invalid parameter \"{}\"", bstr::BStr::new(text)),
                ));
            }
        }
    }
    if udp {
        check_datagrams(line)?;
    }
    for address in net::listen::addresses(line, None)? {
        let address = if udp { datagrams(address) } else { address };
        if conf.listens.iter().any(|known| known.address == address) {
            return Err(line.error(format!("a duplicate listen {}", line.text(0))));
        }
        conf.listens.push(Listen {
            address,
            ..listen.clone()
        });
    }
    Ok(())
}

fn check_datagrams(line: &Line) -> Result<(), Diagnostic> {
    for word in line.args() {
        let name = word
            .text
            .split(|byte| *byte == b'=')
            .next()
            .unwrap_or_default();
        if let Some(name) = STREAM_ONLY.iter().find(|known| known.as_bytes() == name) {
            return Err(line.directive_error(&format!(
                "\"{name}\" parameter is incompatible with \"udp\""
            )));
        }
    }
    Ok(())
}

fn datagrams(address: ListenAddress) -> ListenAddress {
    match address {
        ListenAddress::Tcp(address) => ListenAddress::Udp(address),
        ListenAddress::Unix(path) => ListenAddress::UnixDatagram(path),
        other => other,
    }
}

/// A server's claims.
pub fn claims(core: &ServerConf, server: ServerId, span: Span) -> impl Iterator<Item = Claim> {
    let names = match core.names.is_empty() {
        true => vec![ServerName::Exact(BString::default())],
        false => core.names.clone(),
    };
    core.listens.clone().into_iter().map(move |listen| Claim {
        listen,
        server,
        names: names.clone(),
        span,
    })
}

/// Puts the claims of all servers together. Contradictions are reported.
pub fn endpoints(claims: Vec<Claim>, line: &mut Line) -> Vec<Arc<Endpoint>> {
    let mut by_address: BTreeMap<ListenAddress, Vec<Claim>> = BTreeMap::new();
    for claim in claims {
        by_address
            .entry(claim.listen.address.clone())
            .or_default()
            .push(claim);
    }
    let wildcards: Vec<(ListenAddress, ListenOptions)> = by_address
        .iter()
        .filter(|(address, _)| is_wildcard(address))
        .map(|(address, claims)| (address.clone(), options(claims)))
        .collect();
    let mut endpoints = Vec::new();
    for (address, claims) in by_address {
        let own = claims.iter().any(|claim| claim.listen.set);
        let covering = wildcards
            .iter()
            .find(|(wildcard, _)| !own && covers(wildcard, &address));
        let (socket, options) = match covering {
            Some((wildcard, options)) => (wildcard.clone(), options.clone()),
            None => (address.clone(), options(&claims)),
        };
        let server = default_server(&address, &claims, line);
        let names = names(&address, &claims, line);
        let proxy_protocol = claims.iter().any(|claim| claim.listen.proxy_protocol);
        let tls = claims.iter().any(|claim| claim.listen.tls);
        endpoints.push(Arc::new(Endpoint {
            address,
            names,
            server,
            proxy_protocol,
            tls,
            socket,
            options,
        }));
    }
    endpoints
}

/// Which server a name leads to; nothing is looked up where all lead to the same.
fn names(
    address: &ListenAddress,
    claims: &[Claim],
    line: &mut Line,
) -> ServerNames<ServerId, Pattern> {
    let mut names = ServerNames::default();
    let is_pattern = |name: &ServerName<Pattern>| matches!(name, ServerName::Regex(_));
    if claims.len() == 1 && !claims[0].names.iter().any(is_pattern) {
        return names;
    }
    for claim in claims {
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
    names
}

fn options(claims: &[Claim]) -> ListenOptions {
    let set = claims.iter().find(|claim| claim.listen.set);
    set.or(claims.first())
        .map(|claim| claim.listen.options.clone())
        .unwrap_or_default()
}

fn default_server(address: &ListenAddress, claims: &[Claim], line: &mut Line) -> ServerId {
    let mut report =
        |message: String, span: Span| line.level.report(Diagnostic::error(message, span));
    let mut default = None;
    let mut set = false;
    for Claim { listen, server, .. } in claims {
        if listen.set && std::mem::replace(&mut set, true) {
            report(
                format!("duplicate listen options for {address}"),
                listen.span,
            );
        }
        if listen.default_server && default.replace(*server).is_some() {
            report(
                format!("a duplicate default server for {address}"),
                listen.span,
            );
        }
    }
    default.unwrap_or_else(|| claims.first().map(|claim| claim.server).unwrap_or_default())
}

/// The sockets that these endpoints need.
pub fn listeners(endpoints: &[Arc<Endpoint>]) -> Vec<ListenerSpec> {
    let mut specs: Vec<ListenerSpec> = Vec::new();
    for endpoint in endpoints {
        if !specs.iter().any(|spec| spec.address == endpoint.socket) {
            specs.push(ListenerSpec {
                address: endpoint.socket.clone(),
                options: endpoint.options.clone(),
            });
        }
    }
    specs
}

/// The endpoint of a session that came by `socket` and whose own end is `local`.
pub fn endpoint_of<'a>(
    endpoints: &'a [Arc<Endpoint>],
    socket: &ListenAddress,
    local: impl Fn() -> Option<IpAddr>,
) -> Option<&'a Arc<Endpoint>> {
    let mut candidates = endpoints
        .iter()
        .filter(|endpoint| endpoint.socket == *socket);
    let first = candidates.next()?;
    if candidates.next().is_none() {
        return Some(first);
    }
    let ip = local().map(unmapped);
    let mut candidates = endpoints
        .iter()
        .filter(|endpoint| endpoint.socket == *socket);
    let exact = candidates.find(|endpoint| match endpoint.address {
        ListenAddress::Tcp(address) | ListenAddress::Udp(address) => Some(address.ip()) == ip,
        ListenAddress::Unix(_) | ListenAddress::UnixDatagram(_) => false,
    });
    exact.or_else(|| {
        endpoints
            .iter()
            .find(|endpoint| endpoint.address == *socket)
    })
}

fn unmapped(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) if v6 != Ipv6Addr::UNSPECIFIED => v6.to_canonical(),
        other => other,
    }
}
