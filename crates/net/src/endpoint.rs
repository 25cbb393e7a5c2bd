//! How the `listen` directives of all servers become sockets.
//!
//! Several servers may share an address. Then a name selects the server: the host of a request, or the name in a
//! TLS ClientHello. Several addresses may share a socket: `listen *:80` in one server and `listen 10.0.0.1:80` in
//! another open only the first, and the local address of a connection says which of the two it belongs to, as in
//! nginx.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use conf::{Diagnostic, DirectiveLine, Span};
use host::engine::ListenerSpec;
use host::listen::{ListenAddress, ListenOptions};

use crate::cluster::{Cluster, MemberTls};
use crate::listen::{is_wildcard, socket_parameter, wildcard_covers};
use crate::server_name::{ServerId, ServerName, ServerNames};

/// One address of a `listen` directive.
#[derive(Clone, Debug)]
pub struct ListenEntry {
    /// The address as configured.
    pub address: ListenAddress,
    /// Parameters about the connections.
    pub flags: ListenFlags,
    /// The cluster whose members alone are answered (`cluster=`).
    pub cluster: Option<Arc<Cluster>>,
    /// Parameters about the socket.
    pub options: ListenOptions,
    /// Whether socket options were given, which is allowed once for an address. Such an address gets a socket of
    /// its own even where a wildcard socket would cover it: the options could not apply to a part of that.
    pub set: bool,
    /// The position in the configuration, for messages.
    pub span: Span,
}

impl ListenEntry {
    /// Default options, and an address that is still to be filled in.
    pub fn new(span: Span) -> Self {
        ListenEntry {
            address: ListenAddress::Unix("".into()),
            flags: ListenFlags::default(),
            cluster: None,
            options: ListenOptions::default(),
            set: false,
            span,
        }
    }

    /// Reads word `index` of its line as a parameter that http and stream both know. `false`: it is none of those.
    pub fn parameter(
        &mut self,
        line: &mut DirectiveLine,
        index: usize,
    ) -> Result<bool, Diagnostic> {
        match &**line.text(index) {
            b"default_server" => self.flags.default_server = true,
            b"proxy_protocol" => self.flags.proxy_protocol = true,
            b"ssl" => self.flags.tls = true,
            _ => {
                let is_known = socket_parameter(&mut self.options, line, index)?;
                self.set |= is_known;
                return Ok(is_known);
            }
        }
        Ok(true)
    }

    /// Adds this to a server's `listen` directives, once for each address. An error if the server already has one
    /// of them.
    pub fn add_to(
        self,
        known: &mut Vec<ListenEntry>,
        addresses: impl IntoIterator<Item = ListenAddress>,
        line: &DirectiveLine,
    ) -> Result<(), Diagnostic> {
        for address in addresses {
            if let Some(first) = known.iter().find(|known| known.address == address) {
                let message = format!("a duplicate listen {address}");
                return Err(line.error_after(first.span, message));
            }
            known.push(ListenEntry {
                address,
                ..self.clone()
            });
        }
        Ok(())
    }
}

/// The `listen` parameters about the connections rather than the socket. They hold for an address if one server
/// gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenFlags {
    /// This server answers for names that no server at the address has.
    pub default_server: bool,
    /// Connections begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// Connections begin with a TLS handshake (`ssl`).
    pub tls: bool,
    /// HTTP/2 is offered (`listen … http2`, which nginx has deprecated in favour of the `http2` directive).
    pub http2: bool,
    /// Connections are QUIC's (`quic`).
    pub quic: bool,
}

/// A server's claim to an address.
pub struct ServerListen {
    /// The address.
    pub listen: ListenEntry,
    /// The server.
    pub server: ServerId,
    /// Its `server_name`s.
    pub names: Vec<ServerName>,
    /// The position of the `server` block, for messages about its names.
    pub span: Span,
}

/// The claims of one server, whose block is at `span`. One without a name takes requests that name no host.
pub fn claims<'a>(
    names: &'a [ServerName],
    listens: &'a [ListenEntry],
    server: ServerId,
    span: Span,
) -> impl Iterator<Item = ServerListen> + 'a {
    let nameless = || vec![ServerName::Exact("".into())];
    listens.iter().map(move |listen| ServerListen {
        listen: listen.clone(),
        server,
        names: if names.is_empty() {
            nameless()
        } else {
            names.to_vec()
        },
        span,
    })
}

/// An address with the servers that answer there.
pub struct ListenEndpoint {
    /// The address as configured.
    pub address: ListenAddress,
    /// Which server a name selects; empty where every name selects the same one, so that no lookup is done.
    pub names: ServerNames,
    /// The server for all other names.
    pub default_server: ServerId,
    /// All servers at this address.
    pub servers: Vec<ServerId>,
    /// Connections begin with a TLS handshake.
    pub tls: bool,
    /// Connections begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// HTTP/2 is offered even if the servers' `http2` is off.
    pub http2: bool,
    /// Connections are QUIC's.
    pub quic: bool,
    /// The cluster whose members alone are answered here.
    pub cluster: Option<Arc<Cluster>>,
    /// The address of the socket that these connections arrive on: its own, or a wildcard's.
    pub socket: ListenAddress,
    /// Options of that socket.
    pub options: ListenOptions,
}

impl ListenEndpoint {
    /// The TLS of the cluster whose members are answered here, which takes the place of the servers' own.
    pub fn member_tls(&self) -> Option<&MemberTls> {
        self.cluster.as_ref()?.settings()?.tls.as_deref()
    }

    /// Whether a name has to be known before the server is.
    pub fn needs_name(&self) -> bool {
        !self.names.is_empty()
    }
}

/// Groups the `listen` directives of all servers by address. Contradictions are reported, and the first one counts.
pub fn build_endpoints(
    claims: Vec<ServerListen>,
    line: &mut DirectiveLine,
) -> Vec<Arc<ListenEndpoint>> {
    // A sorted map: sockets are opened in the same order at each start, whatever order the servers are in.
    let mut by_address: BTreeMap<ListenAddress, Vec<ServerListen>> = BTreeMap::new();
    for claim in claims {
        by_address
            .entry(claim.listen.address.clone())
            .or_default()
            .push(claim);
    }
    // Collected first: any address below may turn out to be covered by one of them.
    let wildcards: Vec<(ListenAddress, ListenOptions)> = by_address
        .iter()
        .filter(|(address, _)| is_wildcard(address))
        .map(|(address, claims)| (address.clone(), options(claims)))
        .collect();
    let mut endpoints = Vec::new();
    for (address, claims) in by_address {
        // bind() with options of its own needs a socket of its own; see `ListenEntry::set`.
        let own = claims.iter().any(|claim| claim.listen.set);
        let covering = wildcards
            .iter()
            .find(|(wildcard, _)| !own && wildcard_covers(wildcard, &address));
        let (socket, options) = match covering {
            Some((wildcard, options)) => (wildcard.clone(), options.clone()),
            None => (address.clone(), options(&claims)),
        };
        let Some(default_server) = default_server(&address, &claims, line) else {
            continue;
        };
        let any =
            |flag: fn(&ListenFlags) -> bool| claims.iter().any(|claim| flag(&claim.listen.flags));
        let cluster = cluster_of(&address, &claims, line);
        // All `cluster` blocks have been read.
        let has_member_tls = cluster
            .as_ref()
            .and_then(|cluster| cluster.settings())
            .is_some_and(|settings| settings.tls.is_some());
        endpoints.push(Arc::new(ListenEndpoint {
            names: names(&address, &claims, line),
            default_server,
            servers: claims.iter().map(|claim| claim.server).collect(),
            // QUIC always includes TLS.
            tls: has_member_tls || any(|flags| flags.tls || flags.quic),
            proxy_protocol: any(|flags| flags.proxy_protocol),
            http2: any(|flags| flags.http2),
            quic: any(|flags| flags.quic),
            cluster,
            address,
            socket,
            options,
        }));
    }
    endpoints
}

/// The cluster of an address. All servers at the address must name it: one that does not would answer any client.
fn cluster_of(
    address: &ListenAddress,
    claims: &[ServerListen],
    line: &mut DirectiveLine,
) -> Option<Arc<Cluster>> {
    let cluster = claims
        .iter()
        .find_map(|claim| claim.listen.cluster.as_ref())?;
    for ServerListen { listen, .. } in claims {
        let is_same = |other: &Arc<Cluster>| other.name() == cluster.name();
        if !listen.cluster.as_ref().is_some_and(is_same) {
            let text = format!("no \"cluster={}\" for {address}", cluster.name());
            let error = Diagnostic::error(text, listen.span);
            let note = "another server has it for this address, and only members of the cluster may be answered there";
            line.level.report(error.note(note));
        }
    }
    Some(Arc::clone(cluster))
}

/// The options of the directive that has some; by default those of the first one, as in nginx.
fn options(claims: &[ServerListen]) -> ListenOptions {
    let set = claims.iter().find(|claim| claim.listen.set);
    set.or(claims.first())
        .map(|claim| claim.listen.options.clone())
        .unwrap_or_default()
}

/// The server with `default_server`, or else the first in the configuration, as in nginx. Options or a default that
/// are given twice are reported here.
fn default_server(
    address: &ListenAddress,
    claims: &[ServerListen],
    line: &mut DirectiveLine,
) -> Option<ServerId> {
    let mut report = |what: &str, span, first| {
        let mut error = Diagnostic::error(format!("{what} for {address}"), span);
        if let Some(place) = line.sources().place(first) {
            error = error.note(format!("first in {place}"));
        }
        line.level.report(error);
    };
    let mut default = None;
    let (mut set, mut default_at) = (None, None);
    for ServerListen { listen, server, .. } in claims {
        if listen.set
            && let Some(first) = set.replace(listen.span)
        {
            report("duplicate listen options", listen.span, first);
        }
        if listen.flags.default_server {
            default = Some(*server);
            if let Some(first) = default_at.replace(listen.span) {
                report("a duplicate default server", listen.span, first);
            }
        }
    }
    default.or(claims.first().map(|claim| claim.server))
}

/// Which server a name selects. If there is only one server, nothing needs to be looked up, unless it has a regular
/// expression whose groups set variables. Then TLS and `Host` cannot disagree about it either, so no request gets a 421.
fn names(
    address: &ListenAddress,
    claims: &[ServerListen],
    line: &mut DirectiveLine,
) -> ServerNames {
    let mut names = ServerNames::default();
    let has_groups = |name: &ServerName| match name {
        ServerName::Regex(pattern) => pattern.regex.group_count() > 0,
        ServerName::Exact(_) | ServerName::Front(_) | ServerName::Below(_) | ServerName::End(_) => {
            false
        }
    };
    if claims.len() == 1 && !claims[0].names.iter().any(has_groups) {
        return names;
    }
    for claim in claims {
        for name in &claim.names {
            // nginx only warns and keeps the first server: configurations in use depend on being accepted.
            if !names.add(name, claim.server) {
                let shown = name.text();
                let mut warning = Diagnostic::error(
                    format!("conflicting server name \"{shown}\" on {address}, ignored"),
                    claim.span,
                );
                warning.severity = conf::Severity::Warn;
                line.level
                    .report(warning.place(conf::DiagnosticPlace::Unsaid));
            }
        }
    }
    names.finish();
    names
}

/// The sockets to open for these addresses, each once.
pub fn listener_specs(endpoints: &[Arc<ListenEndpoint>]) -> Vec<ListenerSpec> {
    let mut specs: Vec<ListenerSpec> = Vec::new();
    let mut known = HashSet::new();
    for endpoint in endpoints {
        if known.insert(&endpoint.socket) {
            specs.push(ListenerSpec {
                address: endpoint.socket.clone(),
                options: endpoint.options.clone(),
            });
        }
    }
    specs
}

/// The address entry of a connection that was accepted on `socket`. `local` gives the connection's own address; it
/// is a system call, so it is asked only where several addresses share the socket.
pub fn endpoint_of<'a>(
    endpoints: &'a [Arc<ListenEndpoint>],
    socket: &ListenAddress,
    local: impl Fn() -> Option<IpAddr>,
) -> Option<&'a Arc<ListenEndpoint>> {
    let candidates = || {
        endpoints
            .iter()
            .filter(|endpoint| endpoint.socket == *socket)
    };
    // The usual case, one address for the socket, is decided without the local address.
    let first = candidates().next()?;
    if candidates().nth(1).is_none() {
        return Some(first);
    }
    // On a dual-stack socket (`ipv6only=off`) an IPv4 client's connection has a mapped local address,
    // ::ffff:10.0.0.1.
    let ip = local().map(unmapped);
    let exact = candidates().find(|endpoint| match endpoint.address {
        ListenAddress::Tcp(address) | ListenAddress::Udp(address) => Some(address.ip()) == ip,
        ListenAddress::Unix(_) | ListenAddress::UnixDatagram(_) => false,
    });
    // No address of its own: the connection belongs to the wildcard.
    exact.or_else(|| {
        endpoints
            .iter()
            .find(|endpoint| endpoint.address == *socket)
    })
}

/// `::` stays what it is: the conversion is meant for mapped addresses only.
fn unmapped(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) if v6 != Ipv6Addr::UNSPECIFIED => v6.to_canonical(),
        other => other,
    }
}
