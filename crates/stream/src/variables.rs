//! The variables that exist without any module: nginx's
//! (<https://nginx.org/en/docs/stream/ngx_stream_core_module.html#variables>).

use std::fmt;

use bstr::{BStr, ByteSlice};
use conf::Variable;
use host::error_log::LogLevel;
use net::client::{ConnectionEnds, ConnectionVariables, RemoteClient};
use proto::proxy_protocol::DecodedProxyHeader;
use rt::net::SocketAddress;

use crate::session::StreamSession;

/// All variables of the engine, in the order of the reference.
pub static VARIABLES: &[&[Variable<StreamSession>]] = &[
    ConnectionVariables::<StreamSession>::VARIABLES,
    CORE,
    ConnectionVariables::<StreamSession>::OF_SERVER,
    crate::upstream::variables::VARIABLES,
];

/// What changes during a session is `volatile`: it is evaluated at each use, not kept from the first one.
static CORE: &[Variable<StreamSession>] = &[
    Variable::new(
        "protocol",
        |s, out| text(if s.client.is_udp() { "UDP" } else { "TCP" }, out),
        "`TCP` or `UDP`.",
    ),
    Variable::new(
        "bytes_sent",
        |s: &mut StreamSession, out| number(s.client.sent.get(), out),
        "The number of bytes sent to the client.",
    )
    .volatile(),
    Variable::new(
        "bytes_received",
        |s: &mut StreamSession, out| number(s.received, out),
        "The number of bytes received from the client.",
    )
    .volatile(),
    Variable::new(
        "session_time",
        session_time,
        "The duration of the session, in seconds with millisecond resolution.",
    )
    .volatile(),
    Variable::new(
        "status",
        status,
        "The status of the session: 200, 400, 403, 500, 502 or 503.",
    )
    .volatile(),
];

fn text(value: impl AsRef<[u8]>, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(value.as_ref());
    true
}

fn number(value: u64, out: &mut Vec<u8>) -> bool {
    base::text::write_number(value, out);
    true
}

fn seconds(millis: u64, out: &mut Vec<u8>) -> bool {
    base::text::write_seconds(millis, out);
    true
}

fn session_time(session: &mut StreamSession, out: &mut Vec<u8>) -> bool {
    let open = rt::now().saturating_duration_since(session.client.accepted);
    seconds(u64::try_from(open.as_millis()).unwrap_or(u64::MAX), out)
}

fn status(session: &mut StreamSession, out: &mut Vec<u8>) -> bool {
    // Three digits as in nginx, `000` while the session runs.
    text(format!("{:03}", session.status), out)
}

impl ConnectionEnds for StreamSession {
    fn remote(&self) -> &RemoteClient {
        &self.remote
    }

    fn local(&self) -> SocketAddress {
        self.client.local()
    }

    fn server_name(&self) -> &BStr {
        self.server().name.as_bstr()
    }

    fn connection(&self) -> u64 {
        self.client.number
    }

    fn version(&self) -> &str {
        &self.site.version
    }

    fn proxy_header(&self) -> Option<&DecodedProxyHeader> {
        self.client.proxy.as_deref()
    }

    fn peer(&self) -> &RemoteClient {
        &self.client.remote
    }

    fn log(&self, level: LogLevel, message: fmt::Arguments<'_>) {
        StreamSession::log(self, level, message);
    }
}
