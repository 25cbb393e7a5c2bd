//! Variables of the two ends of the connection.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bstr::{BString, ByteSlice};
use conf::Variable;
use proto::Known;
use proto::h1::Method;
use proto::proxy_protocol::{Endpoint, Header};
use rt::net::TcpInfo;

use super::{number, optional, port, text};
use crate::request::Request;

pub(super) static VARIABLES: &[Variable<Request>] = &[
    Variable::new(
        "remote_addr",
        |r, out| text(&r.remote.text, out),
        "The address of the client.",
    ),
    Variable::new(
        "remote_port",
        |r, out| port(r.remote.address.port(), out),
        "The port of the client.",
    ),
    Variable::new(
        "binary_remote_addr",
        binary_remote_addr,
        "The address of the client as 4 or 16 bytes.",
    ),
    Variable::new(
        "remote_user",
        remote_user,
        "The user name that the client gave for Basic authentication.",
    ),
    Variable::new(
        "server_addr",
        server_addr,
        "The address that accepted the request.",
    ),
    Variable::new(
        "server_port",
        |r, out| port(r.local_port(), out),
        "The port that accepted the request.",
    ),
    Variable::new(
        "server_name",
        server_name,
        "The first name of the server that serves the request.",
    ),
    Variable::new(
        "connection",
        |r, out| number(r.client.number, out),
        "The number of the connection.",
    ),
    Variable::new(
        "connection_requests",
        |r, out| number(r.client.requests.get(), out),
        "Requests on this connection so far.",
    ),
    Variable::new(
        "connection_time",
        connection_time,
        "How long the connection is open, in seconds with milliseconds.",
    )
    .volatile(),
    Variable::new(
        "pipe",
        |r, out| text(if r.flow.pipelined { "p" } else { "." }, out),
        "`p` for a pipelined request, else `.`.",
    ),
    Variable::new(
        "tcpinfo_rtt",
        |r: &mut Request, out| tcp(r, |info| info.rtt_us, out),
        "Round-trip time of the connection, in microseconds.",
    )
    .volatile(),
    Variable::new(
        "tcpinfo_rttvar",
        |r: &mut Request, out| tcp(r, |info| info.rtt_variation_us, out),
        "How much it varies, in microseconds.",
    )
    .volatile(),
    Variable::new(
        "tcpinfo_snd_cwnd",
        |r: &mut Request, out| tcp(r, |info| info.send_window, out),
        "Packets that may be under way to the client.",
    )
    .volatile(),
    Variable::new(
        "tcpinfo_rcv_space",
        |r: &mut Request, out| tcp(r, |info| info.receive_space, out),
        "Bytes that the kernel receives ahead.",
    )
    .volatile(),
    Variable::new(
        "proxy_protocol_addr",
        |r, out| proxied(r, |h| &h.source, address, out),
        "The client's address by the PROXY protocol.",
    ),
    Variable::new(
        "proxy_protocol_port",
        |r, out| proxied(r, |h| &h.source, endpoint_port, out),
        "The client's port by the PROXY protocol.",
    ),
    Variable::new(
        "proxy_protocol_server_addr",
        |r, out| proxied(r, |h| &h.destination, address, out),
        "The server's address by the PROXY protocol.",
    ),
    Variable::new(
        "proxy_protocol_server_port",
        |r, out| proxied(r, |h| &h.destination, endpoint_port, out),
        "The server's port by the PROXY protocol.",
    ),
    Variable::prefix(
        "proxy_protocol_tlv_",
        proxy_tlv,
        "A value of the PROXY protocol's header by name or `0x` and number.",
    ),
];

fn binary_remote_addr(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match request.remote.address.ip() {
        Some(IpAddr::V4(ip)) => text(ip.octets(), out),
        Some(IpAddr::V6(ip)) => text(ip.octets(), out),
        None => text(&request.remote.text, out),
    }
}

fn remote_user(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match &request.flow.user {
        Some(user) => text(user, out),
        None => optional(request.basic_credentials().map(|(user, _)| user), out),
    }
}

/// nginx decodes what clients send though its padding may be missing.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

impl Request {
    /// User and password of the `Authorization` field (RFC 7617), nobody having checked them. An empty name is none. Who
    /// asks for a tunnel talks to a proxy, and sends `Proxy-Authorization` (RFC 9110, section 11.7).
    pub fn basic_credentials(&self) -> Option<(BString, BString)> {
        let name = match self.method {
            Method::Connect => Known::ProxyAuthorization,
            _ => Known::Authorization,
        };
        let field = self.head.known(name)?;
        let (scheme, rest) = field.split_at_checked(6)?;
        let encoded = scheme.eq_ignore_ascii_case(b"Basic ").then_some(rest)?;
        let mut decoded = LENIENT
            .decode(encoded.trim_start_with(|sign| sign == ' '))
            .ok()?;
        let colon = decoded.find_byte(b':').filter(|&length| length > 0)?;
        let password = decoded.split_off(colon + 1);
        decoded.pop();
        Some((decoded.into(), password.into()))
    }
}

fn server_addr(request: &mut Request, out: &mut Vec<u8>) -> bool {
    request.write_server_address(out);
    true
}

fn server_name(request: &mut Request, out: &mut Vec<u8>) -> bool {
    text(&request.site.server(request.server).name, out)
}

fn connection_time(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let open = rt::now().saturating_duration_since(request.client.accepted);
    crate::text::write_seconds(open.as_millis() as u64, out);
    true
}

fn tcp(request: &Request, part: fn(&TcpInfo) -> u32, out: &mut Vec<u8>) -> bool {
    let info = request.client.stream.socket().tcp_info();
    info.is_some_and(|info| number(part(&info).into(), out))
}

fn proxied(
    request: &Request,
    which: fn(&Header) -> &Endpoint,
    write: fn(&Endpoint, &mut Vec<u8>) -> bool,
    out: &mut Vec<u8>,
) -> bool {
    request
        .client
        .proxy
        .as_ref()
        .is_some_and(|header| write(which(header), out))
}

fn address(endpoint: &Endpoint, out: &mut Vec<u8>) -> bool {
    text(&endpoint.text, out)
}

fn endpoint_port(endpoint: &Endpoint, out: &mut Vec<u8>) -> bool {
    port(endpoint.port, out)
}

fn proxy_tlv(request: &mut Request, name: &str, out: &mut Vec<u8>) -> bool {
    let Some(header) = &request.client.proxy else {
        return false;
    };
    if !proto::proxy_protocol::is_tlv_name(name) {
        request.error(format_args!("unknown PROXY protocol TLV \"{name}\""));
        return false;
    }
    optional(header.tlv(name), out)
}
