//! Who is at the other end of an accepted connection, and the variables that http and stream both have: of the two ends
//! of the connection, and of the server itself.

use std::fmt;
use std::io::Write;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use base::text::{write_number, write_seconds};
use bstr::{BStr, BString};
use conf::Variable;
use host::error_log::LogLevel;
use proto::proxy_protocol::{DecodedProxyHeader, ProxyEndpoint, is_tlv_name};
use rt::net::SocketAddress;

use crate::local_time;

/// The client's address, and the text that variables and logs show.
#[derive(Clone)]
pub struct RemoteClient {
    /// The address and port.
    pub address: SocketAddress,
    /// The address without the port, as `$remote_addr` shows it.
    pub text: BString,
}

impl RemoteClient {
    /// A client at this address.
    pub fn from_address(address: SocketAddress) -> RemoteClient {
        let text = match address.ip() {
            None => "unix:".into(),
            Some(IpAddr::V6(ip)) => ip.to_string().into(),
            Some(IpAddr::V4(ip)) => text_of_ipv4(ip).into(),
        };
        RemoteClient { address, text }
    }
}

/// Written by hand because it is done for every connection: `format!` takes 1,300 instructions for it.
fn text_of_ipv4(ip: Ipv4Addr) -> Vec<u8> {
    let mut text = [b'.'; "255.255.255.255.".len()];
    let mut end = 0;
    for octet in ip.octets() {
        for (unit, is_written) in [(100, octet >= 100), (10, octet >= 10), (1, true)] {
            text[end] = b'0' + octet / unit % 10;
            end += usize::from(is_written);
        }
        text[end] = b'.';
        end += 1;
    }
    text[..end - 1].to_vec()
}

/// A request or a session, as the variables that both have see it.
pub trait ConnectionEnds: 'static {
    /// The client, which `realip` may have corrected.
    fn remote(&self) -> &RemoteClient;

    /// The local address of the connection, which the client connected to.
    fn local(&self) -> SocketAddress;

    /// The first `server_name` of the server that answers.
    fn server_name(&self) -> &BStr;

    /// The serial number of the connection in this process.
    fn connection(&self) -> u64;

    /// The version that the server goes by.
    fn version(&self) -> &str;

    /// The PROXY protocol header that preceded the connection's data; `None` where the listener expects none.
    fn proxy_header(&self) -> Option<&DecodedProxyHeader>;

    /// Whom the connection was accepted from, whatever `realip` made of it.
    fn peer(&self) -> &RemoteClient;

    /// Writes a line about it to the error log.
    fn log(&self, level: LogLevel, message: fmt::Arguments<'_>);
}

/// The table of variables for one kind of request or session.
pub struct ConnectionVariables<S>(PhantomData<S>);

impl<S: ConnectionEnds> ConnectionVariables<S> {
    /// nginx has each of these twice, in its http and its stream core module.
    pub const VARIABLES: &'static [Variable<S>] = &[
        Variable::new(
            "remote_addr",
            |s, out| text(&s.remote().text, out),
            "The client address.",
        ),
        Variable::new(
            "remote_port",
            |s, out| port(s.remote().address.port(), out),
            "The client port.",
        ),
        Variable::new(
            "binary_remote_addr",
            |s, out| binary(s.remote(), out),
            "The client address in binary form, 4 or 16 bytes.",
        ),
        Variable::new(
            "server_addr",
            |s, out| {
                write_address(&s.local(), out);
                true
            },
            "The address of the server that accepted the connection.",
        ),
        Variable::new(
            "server_port",
            |s, out| port(s.local().port(), out),
            "The port of the server that accepted the connection.",
        ),
        Variable::new(
            "server_name",
            |s, out| text(s.server_name(), out),
            "The first name of the server.",
        ),
        Variable::new(
            "connection",
            |s, out| number(s.connection(), out),
            "The serial number of the connection.",
        ),
        Variable::new(
            "proxy_protocol_addr",
            |s, out| endpoint(s, |h| &h.source, |e, out| text(&e.text, out), out),
            "The client address from the PROXY protocol header.",
        ),
        Variable::new(
            "proxy_protocol_port",
            |s, out| endpoint(s, |h| &h.source, |e, out| port(e.port, out), out),
            "The client port from the PROXY protocol header.",
        ),
        Variable::new(
            "proxy_protocol_server_addr",
            |s, out| endpoint(s, |h| &h.destination, |e, out| text(&e.text, out), out),
            "The server address from the PROXY protocol header.",
        ),
        Variable::new(
            "proxy_protocol_server_port",
            |s, out| endpoint(s, |h| &h.destination, |e, out| port(e.port, out), out),
            "The server port from the PROXY protocol header.",
        ),
        Variable::prefix(
            "proxy_protocol_tlv_",
            tlv,
            "A TLV of the PROXY protocol header, by name or by `0x` and number.",
        ),
    ];

    /// The variables of the server itself: time, process, names.
    pub const OF_SERVER: &'static [Variable<S>] = &[
        Variable::new(
            "msec",
            |_, out| {
                write_seconds(rt::wall_millis(), out);
                true
            },
            "The current time in seconds since the epoch, with millisecond resolution.",
        )
        .volatile(),
        Variable::new(
            "time_local",
            |_, out| {
                local_time::write_log(out);
                true
            },
            "The local time in the Common Log Format.",
        )
        .volatile(),
        Variable::new(
            "time_iso8601",
            |_, out| {
                local_time::write_iso8601(out);
                true
            },
            "The local time in ISO 8601 format.",
        )
        .volatile(),
        Variable::new(
            "pid",
            |_, out| number(std::process::id().into(), out),
            "The process ID of the worker.",
        ),
        Variable::new(
            "hostname",
            |_, out| text(&*HOSTNAME, out),
            "The host name of the machine.",
        ),
        Variable::new(
            "nginx_version",
            |s, out| text(s.version(), out),
            "The version of the server.",
        ),
    ];
}

/// Read once: the name is expected not to change while the server runs.
static HOSTNAME: LazyLock<String> = LazyLock::new(host::process::hostname);

/// Appends an address without its port: `127.0.0.1`, `::1`, `unix:/run/x`.
pub fn write_address(address: &SocketAddress, out: &mut Vec<u8>) {
    // Writing into a Vec cannot fail.
    let _ = match address {
        SocketAddress::Inet(inet) => write!(out, "{}", inet.ip()),
        unix @ SocketAddress::Unix(_) => write!(out, "{unix}"),
    };
}

fn text(value: impl AsRef<[u8]>, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(value.as_ref());
    true
}

fn number(value: u64, out: &mut Vec<u8>) -> bool {
    write_number(value, out);
    true
}

/// Empty where there is no port (unix sockets), as in nginx.
fn port(value: u16, out: &mut Vec<u8>) -> bool {
    value == 0 || number(value.into(), out)
}

/// Network byte order, so that `limit_req_zone` and `limit_conn_zone` get the shortest key that tells clients
/// apart.
fn binary(remote: &RemoteClient, out: &mut Vec<u8>) -> bool {
    match remote.address.ip() {
        Some(IpAddr::V4(ip)) => text(ip.octets(), out),
        Some(IpAddr::V6(ip)) => text(ip.octets(), out),
        // All clients of a unix socket are one to a limit, as in nginx.
        None => text(&remote.text, out),
    }
}

fn endpoint<S: ConnectionEnds>(
    session: &S,
    which: fn(&DecodedProxyHeader) -> &ProxyEndpoint,
    write: fn(&ProxyEndpoint, &mut Vec<u8>) -> bool,
    out: &mut Vec<u8>,
) -> bool {
    let header = session.proxy_header();
    header.is_some_and(|header| write(which(header), out))
}

/// The name is part of the variable's name, so it is known only when the variable is read.
fn tlv<S: ConnectionEnds>(session: &mut S, name: &str, out: &mut Vec<u8>) -> bool {
    let Some(header) = session.proxy_header() else {
        return false;
    };
    // A misspelled name would be empty for ever without a word; a TLV that the peer did not send is normal, and
    // silent.
    if !is_tlv_name(name) {
        let message = format_args!("unknown PROXY protocol TLV \"{name}\"");
        session.log(LogLevel::Error, message);
        return false;
    }
    header.tlv(name).is_some_and(|value| text(value, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_octet_is_written_in_decimal() {
        for octet in 0..=255 {
            for octets in [[octet; 4], [10, octet, 0, 1], [octet, 0, 99, 200]] {
                let ip = Ipv4Addr::from(octets);
                assert_eq!(text_of_ipv4(ip), ip.to_string().into_bytes());
            }
        }
    }
}
