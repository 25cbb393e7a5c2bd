//! The `listen` directive (<https://nginx.org/en/docs/http/ngx_http_core_module.html#listen>). How the claims of all
//! servers become sockets is in `net::endpoint`.

use std::net::{Ipv4Addr, SocketAddr};

use bstr::ByteSlice;
use conf::{Diagnostic, Line, Pattern, Span};
use host::listen::ListenAddress;
use net::endpoint::Listen;

use crate::block_ids::ServerId;

/// A name of a server, from `server_name`.
pub type ServerName = net::server_name::ServerName<Pattern>;

/// A server's claim to an address.
pub type Claim = net::endpoint::Claim<ServerId, Pattern>;

/// An address with the servers that answer there.
pub type Endpoint = net::endpoint::Endpoint<ServerId, Pattern>;

/// The port of an address without one.
const DEFAULT_PORT: u16 = 80;

/// The setter of `listen`.
pub fn set(listens: &mut Vec<Listen>, line: &mut Line) -> Result<(), Diagnostic> {
    let addresses = net::listen::addresses(line, Some(DEFAULT_PORT))?;
    let mut listen = Listen::new(line.node.name.span);
    for index in 1..line.args().len() {
        parameter(&mut listen, line, index)?;
    }
    listen.add_to(listens, addresses, line)
}

/// Reads one parameter behind the address.
fn parameter(listen: &mut Listen, line: &mut Line, index: usize) -> Result<(), Diagnostic> {
    match line.text(index).as_bytes() {
        b"default_server" | b"default" => listen.flags.default_server = true,
        b"proxy_protocol" => listen.flags.proxy_protocol = true,
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
        b"ssl" => listen.flags.tls = true,
        // An error, not ignored: a configuration that asks for HTTP/3 must not silently run without it.
        b"quic" => return Err(net::listen::not_yet(line, index)),
        _ if net::listen::socket_parameter(&mut listen.options, line, index)? => listen.set = true,
        b"spdy" => {
            let error = line.invalid_parameter(index);
            return Err(error.note("SPDY was removed; use \"http2 on;\" for HTTP/2"));
        }
        _ => return Err(line.invalid_parameter(index)),
    }
    Ok(())
}

/// A server's claims to addresses. A server without `listen` gets nginx's default.
pub fn claims(
    names: &[ServerName],
    listens: &[Listen],
    server: ServerId,
    span: Span,
) -> Vec<Claim> {
    let names = match names.is_empty() {
        // nginx's default for `server_name`: requests without a host.
        true => vec![ServerName::Exact("".into())],
        false => names.to_vec(),
    };
    let mut listens = listens.to_vec();
    if listens.is_empty() {
        // Only root may bind a port below 1024.
        let port = if host::process::is_root() { 80 } else { 8000 };
        let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
        listens.push(Listen {
            address: ListenAddress::Tcp(address),
            ..Listen::new(span)
        });
    }
    let claim = |listen| Claim {
        listen,
        server,
        names: names.clone(),
        span,
    };
    listens.into_iter().map(claim).collect()
}
