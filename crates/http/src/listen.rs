//! Where servers listen: the `listen` directive (<https://nginx.org/en/docs/http/ngx_http_core_module.html#listen>). How
//! the claims of all servers become sockets is `net::endpoint`.

use std::net::{Ipv4Addr, SocketAddr};

use bstr::ByteSlice;
use conf::{Diagnostic, Line, Pattern, Span};
use host::listen::ListenAddress;
use net::endpoint::Listen;

use crate::block_ids::ServerId;

/// A server's name as the configuration has it.
pub type ServerName = net::server_name::ServerName<Pattern>;

/// A server's claim to an address.
pub type Claim = net::endpoint::Claim<ServerId, Pattern>;

/// An address with the servers that answer there.
pub type Endpoint = net::endpoint::Endpoint<ServerId, Pattern>;

/// The port of an address that names none.
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

fn parameter(listen: &mut Listen, line: &mut Line, index: usize) -> Result<(), Diagnostic> {
    match line.text(index).as_bytes() {
        b"default_server" | b"default" => listen.flags.default_server = true,
        b"proxy_protocol" => listen.flags.proxy_protocol = true,
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

/// A server's claims. One that says nothing of where it listens gets nginx's default.
pub fn claims(
    names: &[ServerName],
    listens: &[Listen],
    server: ServerId,
    span: Span,
) -> Vec<Claim> {
    let names = match names.is_empty() {
        true => vec![ServerName::Exact("".into())],
        false => names.to_vec(),
    };
    let mut listens = listens.to_vec();
    if listens.is_empty() {
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
