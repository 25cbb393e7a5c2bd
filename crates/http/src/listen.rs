//! The `listen` directive (<https://nginx.org/en/docs/http/ngx_http_core_module.html#listen>). How the claims of all
//! servers become sockets is in `net::endpoint`.

use std::net::{Ipv4Addr, SocketAddr};

use bstr::{BString, ByteSlice};
use conf::{Diagnostic, DirectiveLine, Span};
use host::listen::{KeepAlive, ListenAddress};
use net::cluster::Clusters;
use net::endpoint::ListenEntry;

pub use net::endpoint::{ListenEndpoint, ServerListen};
pub use net::server_name::ServerName;

/// The port of an address without one.
const DEFAULT_PORT: u16 = 80;

/// The setter of `listen`.
pub fn set_listen(
    listens: &mut Vec<ListenEntry>,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    let mut addresses = net::listen::listen_addresses(line, Some(DEFAULT_PORT))?;
    let mut listen = ListenEntry::new(line.node.name.span);
    for index in 1..line.args().len() {
        parameter(&mut listen, line, index)?;
    }
    if listen.flags.quic {
        check_quic(&listen, line)?;
        addresses = addresses.into_iter().map(datagram_address).collect();
    }
    listen.add_to(listens, addresses, line)
}

/// Reads one parameter behind the address.
fn parameter(
    listen: &mut ListenEntry,
    line: &mut DirectiveLine,
    index: usize,
) -> Result<(), Diagnostic> {
    match line.text(index).as_bytes() {
        b"default" => listen.flags.default_server = true,
        // nginx's warning, with the way out of it.
        b"http2" => {
            let mut warning = line.error(
                "the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead",
            );
            warning.severity = conf::Severity::Warn;
            let note = "take \"http2\" out of this line, and write \"http2 on;\" below it";
            line.level.report(warning.note(note));
            listen.flags.http2 = true;
        }
        b"quic" => listen.flags.quic = true,
        text if text.starts_with(b"cluster=") => {
            let name = BString::from(&text[b"cluster=".len()..]);
            if name.is_empty() {
                return Err(line.invalid_parameter(index));
            }
            listen.cluster = Some(Clusters::refer_to_cluster(line, name.as_bstr()));
        }
        b"spdy" => {
            let error = line.invalid_parameter(index);
            return Err(error.note("SPDY was removed; use \"http2 on;\" for HTTP/2"));
        }
        _ if listen.parameter(line, index)? => {}
        _ => return Err(line.invalid_parameter(index)),
    }
    Ok(())
}

/// The socket of QUIC at this address.
fn datagram_address(address: ListenAddress) -> ListenAddress {
    match address {
        ListenAddress::Tcp(address) => ListenAddress::Udp(address),
        ListenAddress::Unix(path) => ListenAddress::UnixDatagram(path),
        datagrams @ (ListenAddress::Udp(_) | ListenAddress::UnixDatagram(_)) => datagrams,
    }
}

/// Reports parameters that belong to connections over TCP; the messages are nginx's.
fn check_quic(listen: &ListenEntry, line: &DirectiveLine) -> Result<(), Diagnostic> {
    let (options, flags) = (&listen.options, &listen.flags);
    let is_given = |name: &str| {
        (1..line.args().len()).any(|index| line.text(index).starts_with(name.as_bytes()))
    };
    let faults = [
        ("fastopen", options.fast_open.is_some()),
        ("backlog", is_given("backlog=")),
        ("deferred", options.deferred.is_some()),
        ("multipath", options.multipath),
        ("ssl", flags.tls),
        ("http2", flags.http2),
        ("so_keepalive", options.keepalive != KeepAlive::System),
        ("proxy_protocol", flags.proxy_protocol),
    ];
    match faults.iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => Err(line.error(format!(
            "\"{name}\" parameter is incompatible with \"quic\""
        ))),
        None if line.text(0).starts_with(b"unix:") => {
            let error = line.error_at(0, "\"quic\" needs an address and a port");
            Err(error.note("a unix socket has no datagrams of clients"))
        }
        None => Ok(()),
    }
}

/// Where a server listens that does not say it: nginx's default.
pub fn default(span: Span) -> ListenEntry {
    // Only root may bind a port below 1024.
    let port = if host::process::is_root() { 80 } else { 8000 };
    let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    ListenEntry {
        address: ListenAddress::Tcp(address),
        ..ListenEntry::new(span)
    }
}
