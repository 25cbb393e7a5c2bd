//! Variables of the connection and of the client, besides those in [`net::client`].

use std::fmt;

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bstr::{BStr, BString, ByteSlice};
use conf::Variable;
use host::error_log::LogLevel;
use net::client::{ConnectionEnds, RemoteClient};
use proto::KnownField;
use proto::message::Method;
use proto::proxy_protocol::DecodedProxyHeader;
use rt::net::{SocketAddress, TcpInfo};

use super::{number, optional, text};
use crate::request::Request;

pub(super) static VARIABLES: &[Variable<Request>] = &[
    Variable::new(
        "remote_user",
        remote_user,
        "The user name sent with Basic authentication.",
    ),
    Variable::new(
        "connection_requests",
        |r, out| number(r.head.number, out),
        "The number of requests on this connection so far.",
    ),
    Variable::new(
        "connection_time",
        connection_time,
        "The age of the connection, in seconds with millisecond resolution.",
    )
    .volatile(),
    Variable::new(
        "pipe",
        |r, out| text(if r.delivery.pipelined { "p" } else { "." }, out),
        "`p` for a pipelined request, otherwise `.`.",
    ),
    Variable::new(
        "tcpinfo_rtt",
        |r: &mut Request, out| tcp(r, |info| info.rtt_us, out),
        "The smoothed round-trip time of the connection, in microseconds.",
    )
    .volatile(),
    Variable::new(
        "tcpinfo_rttvar",
        |r: &mut Request, out| tcp(r, |info| info.rtt_variation_us, out),
        "The variation of the round-trip time, in microseconds.",
    )
    .volatile(),
    Variable::new(
        "tcpinfo_snd_cwnd",
        |r: &mut Request, out| tcp(r, |info| info.send_window, out),
        "The congestion window of the connection, in packets.",
    )
    .volatile(),
    Variable::new(
        "tcpinfo_rcv_space",
        |r: &mut Request, out| tcp(r, |info| info.receive_space, out),
        "The receive window of the connection, in bytes.",
    )
    .volatile(),
];

/// The name that an authentication module has verified, else the name that the client claims.
fn remote_user(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match &request.user {
        Some(user) => text(user, out),
        None => optional(request.basic_credentials().map(|(user, _)| user), out),
    }
}

/// Like nginx, this accepts Base64 without padding, which some clients send.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

impl Request {
    /// User and password of the `Authorization` field (RFC 7617). They have not been verified. An empty name counts as
    /// none. A client that asks for a tunnel is talking to a proxy, and sends `Proxy-Authorization` (RFC 9110, section
    /// 11.7).
    pub fn basic_credentials(&self) -> Option<(BString, BString)> {
        let name = match self.method {
            Method::Connect => KnownField::ProxyAuthorization,
            _ => KnownField::Authorization,
        };
        let field = self.head.known(name)?;
        let (scheme, rest) = field.split_at_checked(6)?;
        let encoded = scheme.eq_ignore_ascii_case(b"Basic ").then_some(rest)?;
        let mut decoded = LENIENT
            .decode(encoded.trim_start_with(|sign| sign == ' '))
            .ok()?;
        // The first colon separates: the password may contain further ones, the name may not (RFC 7617, section 2).
        let colon = decoded.find_byte(b':').filter(|&length| length > 0)?;
        let password = decoded.split_off(colon + 1);
        decoded.pop();
        Some((decoded.into(), password.into()))
    }
}

/// The time since the connection was accepted.
fn connection_time(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let open = rt::now().saturating_duration_since(request.client.accepted);
    base::text::write_seconds(open.as_millis() as u64, out);
    true
}

/// A figure of the kernel about the connection; no value for a unix socket.
fn tcp(request: &Request, part: fn(&TcpInfo) -> u32, out: &mut Vec<u8>) -> bool {
    let info = request.client.connection.tcp_info();
    info.is_some_and(|info| number(part(&info).into(), out))
}

impl ConnectionEnds for Request {
    fn remote(&self) -> &RemoteClient {
        &self.remote
    }

    fn local(&self) -> SocketAddress {
        self.client.local()
    }

    fn server_name(&self) -> &BStr {
        self.site.server(self.server).name.as_bstr()
    }

    fn connection(&self) -> u64 {
        self.client.number
    }

    fn version(&self) -> &str {
        &self.site.identity.version
    }

    fn proxy_header(&self) -> Option<&DecodedProxyHeader> {
        self.client.proxy.get().map(Box::as_ref)
    }

    fn peer(&self) -> &RemoteClient {
        &self.client.remote
    }

    fn log(&self, level: LogLevel, message: fmt::Arguments<'_>) {
        Request::log(self, level, message);
    }
}
