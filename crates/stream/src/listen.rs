//! Where servers listen: the `listen` directive (<https://nginx.org/en/docs/stream/ngx_stream_core_module.html#listen>).
//! How the claims of all servers become sockets is `net::endpoint`.

use bstr::BString;
use conf::{Diagnostic, Line, Pattern, Span};
use host::listen::ListenAddress;
use net::endpoint::Listen;
use net::server_name::ServerName;

use crate::core::ServerConf;
use crate::site::ServerId;

/// A server's claim to an address.
pub type Claim = net::endpoint::Claim<ServerId, Pattern>;

/// An address with the servers that listen there. The name that a TLS client asks for chooses among them.
pub type Endpoint = net::endpoint::Endpoint<ServerId, Pattern>;

/// Parameters that make no sense for datagrams; nginx refuses them together with `udp`.
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
    let mut listen = Listen::new(line.node.name.span);
    let mut udp = false;
    for index in 1..line.args().len() {
        match &**line.text(index) {
            b"default_server" => listen.flags.default_server = true,
            b"udp" => udp = true,
            b"proxy_protocol" => listen.flags.proxy_protocol = true,
            b"ssl" => listen.flags.tls = true,
            // Options of the socket may be given once for an address, so it is noted that this line gave some.
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
        // After all parameters were read, because `udp` may come behind those that it excludes.
        check_datagrams(line)?;
    }
    let addresses = net::listen::addresses(line, None)?.into_iter();
    let addresses = addresses.map(|address| if udp { datagrams(address) } else { address });
    listen.add_to(&mut conf.listens, addresses, line)
}

/// Refuses parameters that need a connection.
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
    // As in nginx, a server without `server_name` has the empty name, which no client asks for.
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
