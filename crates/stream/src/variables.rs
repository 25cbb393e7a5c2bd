//! The variables that exist without any module: nginx's
//! (<https://nginx.org/en/docs/stream/ngx_stream_core_module.html#variables>).

use std::net::IpAddr;
use std::sync::LazyLock;

use conf::Variable;
use proto::proxy_protocol::{Endpoint, Header};

use crate::clock;
use crate::session::Session;

/// Everything, in the order of the reference.
pub static VARIABLES: &[&[Variable<Session>]] = &[CORE, crate::upstream::VARIABLES];

static CORE: &[Variable<Session>] = &[
    Variable::new(
        "remote_addr",
        |s, out| text(&s.remote.text, out),
        "The address of the client.",
    ),
    Variable::new(
        "remote_port",
        |s, out| port(s.remote.address.port(), out),
        "The port of the client.",
    ),
    Variable::new(
        "binary_remote_addr",
        binary_remote_addr,
        "The address of the client as 4 or 16 bytes.",
    ),
    Variable::new(
        "server_addr",
        server_addr,
        "The address that accepted the session.",
    ),
    Variable::new(
        "server_port",
        |s, out| port(s.client.local().port(), out),
        "The port that accepted the session.",
    ),
    Variable::new(
        "server_name",
        |s, out| text(&s.server().name, out),
        "The first name of the server.",
    ),
    Variable::new(
        "connection",
        |s, out| number(s.client.number, out),
        "The number of the session.",
    ),
    Variable::new(
        "protocol",
        |s, out| text(if s.client.is_udp() { "UDP" } else { "TCP" }, out),
        "`TCP` or `UDP`.",
    ),
    Variable::new(
        "bytes_sent",
        |s: &mut Session, out| number(s.client.sent.get(), out),
        "Bytes sent to the client.",
    )
    .volatile(),
    Variable::new(
        "bytes_received",
        |s: &mut Session, out| number(s.received, out),
        "Bytes received from the client.",
    )
    .volatile(),
    Variable::new(
        "session_time",
        session_time,
        "How long the session lasted, in seconds with milliseconds.",
    )
    .volatile(),
    Variable::new(
        "status",
        status,
        "How the session ended: 200, 400, 403, 500, 502 or 503.",
    )
    .volatile(),
    Variable::new(
        "proxy_protocol_addr",
        |s, out| proxied(s, |h| &h.source, address, out),
        "The client's address by the PROXY protocol.",
    ),
    Variable::new(
        "proxy_protocol_port",
        |s, out| proxied(s, |h| &h.source, endpoint_port, out),
        "The client's port by the PROXY protocol.",
    ),
    Variable::new(
        "proxy_protocol_server_addr",
        |s, out| proxied(s, |h| &h.destination, address, out),
        "The server's address by the PROXY protocol.",
    ),
    Variable::new(
        "proxy_protocol_server_port",
        |s, out| proxied(s, |h| &h.destination, endpoint_port, out),
        "The server's port by the PROXY protocol.",
    ),
    Variable::prefix(
        "proxy_protocol_tlv_",
        proxy_tlv,
        "A value of the PROXY protocol's header by name or `0x` and number.",
    ),
    Variable::new(
        "msec",
        |_: &mut Session, out| seconds(rt::wall_millis(), out),
        "The time in seconds since 1970, with milliseconds.",
    )
    .volatile(),
    Variable::new(
        "time_local",
        |_: &mut Session, out| written(out, clock::write_local_time),
        "The local time as access logs have it.",
    )
    .volatile(),
    Variable::new(
        "time_iso8601",
        |_: &mut Session, out| written(out, clock::write_iso8601),
        "The local time by ISO 8601.",
    )
    .volatile(),
    Variable::new(
        "pid",
        |_, out| number(std::process::id().into(), out),
        "The number of the worker process.",
    ),
    Variable::new(
        "hostname",
        |_, out| text(&*HOSTNAME, out),
        "The name of the machine.",
    ),
    Variable::new(
        "nginx_version",
        |s, out| text(&s.site.version, out),
        "The version of the server.",
    ),
];

/// Read once: the name of a machine does not change under a running server.
static HOSTNAME: LazyLock<String> = LazyLock::new(rt::process::hostname);

fn text(value: impl AsRef<[u8]>, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(value.as_ref());
    true
}

fn number(value: u64, out: &mut Vec<u8>) -> bool {
    text(value.to_string(), out)
}

/// Nothing where there is no port (unix sockets).
fn port(value: u16, out: &mut Vec<u8>) -> bool {
    value == 0 || number(value.into(), out)
}

fn seconds(millis: u64, out: &mut Vec<u8>) -> bool {
    clock::write_seconds(millis, out);
    true
}

fn written(out: &mut Vec<u8>, write: fn(&mut Vec<u8>)) -> bool {
    write(out);
    true
}

fn binary_remote_addr(session: &mut Session, out: &mut Vec<u8>) -> bool {
    match session.remote.address.ip() {
        Some(IpAddr::V4(ip)) => text(ip.octets(), out),
        Some(IpAddr::V6(ip)) => text(ip.octets(), out),
        None => text(&session.remote.text, out),
    }
}

fn server_addr(session: &mut Session, out: &mut Vec<u8>) -> bool {
    let local = session.client.local();
    match local.ip() {
        Some(ip) => text(ip.to_string(), out),
        None => text(local.to_string(), out),
    }
}

fn session_time(session: &mut Session, out: &mut Vec<u8>) -> bool {
    let open = rt::now().saturating_duration_since(session.client.accepted);
    seconds(u64::try_from(open.as_millis()).unwrap_or(u64::MAX), out)
}

fn status(session: &mut Session, out: &mut Vec<u8>) -> bool {
    text(format!("{:03}", session.status), out)
}

fn proxied(
    session: &Session,
    which: fn(&Header) -> &Endpoint,
    write: fn(&Endpoint, &mut Vec<u8>) -> bool,
    out: &mut Vec<u8>,
) -> bool {
    session
        .client
        .proxy
        .as_ref()
        .is_some_and(|header| write(which(header), out))
}

fn address(endpoint: &Endpoint, out: &mut Vec<u8>) -> bool {
    text(&endpoint.text, out)
}

fn endpoint_port(endpoint: &Endpoint, out: &mut Vec<u8>) -> bool {
    number(endpoint.port.into(), out)
}

fn proxy_tlv(session: &mut Session, name: &str, out: &mut Vec<u8>) -> bool {
    let value = session
        .client
        .proxy
        .as_ref()
        .and_then(|header| header.tlv(name));
    value.is_some_and(|value| text(value, out))
}
