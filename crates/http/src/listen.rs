//! Where servers listen: the `listen` directive, and how the claims of all servers become sockets.
//!
//! Several servers may share an address; then the host decides among them. Several addresses may share a socket: with
//! `listen *:80` in one server and `listen 10.0.0.1:80` in another there is one socket, and the local address of a
//! connection decides whose it is, as in nginx.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bstr::ByteSlice;
use conf::{Diagnostic, Line, Span};
use net::listen::{covers, is_wildcard};
use rt::engine::ListenerSpec;
use rt::listen::{ListenAddress, ListenOptions};

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
    /// Connections are encrypted.
    pub tls: bool,
    /// HTTP/2 is spoken, as in times before the `http2` directive.
    pub http2: bool,
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
    /// All servers that answer here.
    pub servers: Vec<ServerId>,
    /// Connections are encrypted.
    pub tls: bool,
    /// Connections begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// HTTP/2 is spoken, whatever the servers say.
    pub http2: bool,
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

/// The port of an address that names none.
const DEFAULT_PORT: u16 = 80;

/// The setter of `listen`.
pub fn set(conf: &mut ServerConf, line: &mut Line) -> Result<(), Diagnostic> {
    let addresses = net::listen::addresses(line, Some(DEFAULT_PORT))?;
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
        conf.listens.push(Listen {
            address,
            ..listen.clone()
        });
    }
    Ok(())
}

fn parameter(listen: &mut Listen, line: &mut Line, index: usize) -> Result<(), Diagnostic> {
    match line.text(index).as_bytes() {
        b"default_server" | b"default" => {
            listen.flags.default_server = true;
            return Ok(());
        }
        b"proxy_protocol" => {
            listen.flags.proxy_protocol = true;
            return Ok(());
        }
        b"http2" => {
            line.warn(
                "the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead",
            );
            listen.flags.http2 = true;
            return Ok(());
        }
        b"ssl" => {
            listen.flags.tls = true;
            return Ok(());
        }
        b"quic" | b"spdy" => return Err(net::listen::not_yet(line, index)),
        _ if net::listen::socket_parameter(&mut listen.options, line, index)? => {}
        _ => {
            return Err(line.error_at(index, format!("invalid parameter \"{}\"", line.text(index))));
        }
    }
    listen.set = true;
    listen.bind = true;
    Ok(())
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
    listens
        .into_iter()
        .map(|listen| Claim {
            listen,
            server,
            names: names.clone(),
            span,
        })
        .collect()
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
        let own = claims.iter().any(|claim| claim.listen.bind);
        let covering = wildcards
            .iter()
            .find(|(wildcard, _)| !own && covers(wildcard, &address));
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
    set.or(claims.first())
        .map(|claim| claim.listen.options.clone())
        .unwrap_or_default()
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
            report(
                line,
                format!("duplicate listen options for {address}"),
                claim.listen.span,
            );
        }
        if claim.listen.flags.default_server {
            if default_server.is_some() {
                report(
                    line,
                    format!("a duplicate default server for {address}"),
                    claim.listen.span,
                );
            }
            default_server = Some(claim.server);
        }
    }
    // A single server takes every host: nothing needs to be looked up, unless a name's groups set variables.
    let has_pattern = |claim: &Claim| {
        claim
            .names
            .iter()
            .any(|name| matches!(name, crate::route::ServerName::Regex(_)))
    };
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
        tls: claims.iter().any(|claim| claim.listen.flags.tls),
        servers: claims.iter().map(|claim| claim.server).collect(),
        http2: claims.iter().any(|claim| claim.listen.flags.http2),
        address,
        socket,
        options,
    }
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

/// The endpoint of a connection that came by `socket` and whose own end is `local`.
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
        ListenAddress::Tcp(address) => Some(address.ip()) == ip,
        _ => false,
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
