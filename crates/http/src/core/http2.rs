//! Settings of HTTP/2: the directives of nginx's `ngx_http_v2_module`, except those that belong to a location, which
//! are in [`super::delivery`].
//!
//! Some of them size nginx's memory. Here they are accepted and checked, so that a configuration is judged as by nginx,
//! and have no effect.

use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP, HTTP_SERVER, RepeatRule,
    Setter,
};
use proto::h2::FlowControlWindow;

/// The values of the directives below, for one server.
#[derive(Clone, Debug, Default)]
pub struct Http2Conf {
    /// Whether the server speaks HTTP/2.
    pub on: bool,
    /// The maximum number of streams that a client may have open at the same time.
    pub max_concurrent_streams: i64,
    /// The initial window of a stream in bytes: how much of a body may arrive before a handler asks for it.
    pub body_preread_size: u64,
    /// The maximum number of bytes in one read from a connection.
    pub recv_buffer_size: u64,
}

/// The directives.
pub static DIRECTIVES: DirectiveTable<Http2Conf> = DirectiveTable::new(&[
    Directive {
        name: "http2",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Enables HTTP/2: over TLS when negotiated by ALPN, and over plain TCP with prior knowledge (h2c).",
        set: Setter::Flag(|c| &mut c.on),
    },
    Directive {
        name: "http2_max_concurrent_streams",
        syntax: "number",
        default: Some("128"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "The maximum number of concurrent streams per connection. Further streams are refused and may be retried \
              by the client.",
        set: Setter::Number(|c| &mut c.max_concurrent_streams, 0, u32::MAX as i64),
    },
    Directive {
        name: "http2_body_preread_size",
        syntax: "size",
        default: Some("64k"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "How much of a request body the client may send before the server starts reading it.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, body_preread_size),
    },
    Directive {
        name: "http2_recv_buffer_size",
        syntax: "size",
        default: Some("256k"),
        contexts: HTTP,
        since: "0.1",
        doc: "The size of the buffer for reading from a connection.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, recv_buffer_size),
    },
    Directive {
        name: "http2_pool_size",
        syntax: "size",
        default: None,
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |_, line| {
            check_pool_size(line)
        }),
    },
    Directive {
        name: "http2_streams_index_size",
        syntax: "number",
        default: None,
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Accepted; has no effect. Must be a power of two.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, streams_index_size),
    },
    obsolete("http2_recv_timeout", "time"),
    obsolete("http2_idle_timeout", "time"),
    obsolete("http2_max_requests", "number"),
    obsolete("http2_max_field_size", "size"),
    obsolete("http2_max_header_size", "size"),
    obsolete("http2_max_concurrent_pushes", "number"),
]);

/// The replacements of directives that older configurations contain.
const REPLACEMENTS: [(&str, &str); 5] = [
    ("http2_recv_timeout", "client_header_timeout"),
    ("http2_idle_timeout", "keepalive_timeout"),
    ("http2_max_requests", "keepalive_requests"),
    ("http2_max_field_size", "large_client_header_buffers"),
    ("http2_max_header_size", "large_client_header_buffers"),
];

/// A row for a directive that nginx has removed.
const fn obsolete(name: &'static str, syntax: &'static str) -> Directive<Http2Conf> {
    Directive {
        name,
        syntax,
        default: None,
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Obsolete: has no effect, and causes a warning that names the replacement.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Many, |_, line| {
            warn_of_obsolete(line);
            Ok(())
        }),
    }
}

/// Warns of a directive that has been removed, and names its replacement if there is one. The wording is nginx's.
pub(super) fn warn_of_obsolete(line: &mut DirectiveLine) {
    let name = line.node.name.text.clone();
    let replacement = REPLACEMENTS.iter().find(|(old, _)| name == old.as_bytes());
    line.warn(match replacement {
        Some((old, new)) => {
            format!("the \"{old}\" directive is obsolete, use the \"{new}\" directive instead")
        }
        None => format!("the \"{name}\" directive is obsolete, ignored"),
    });
}

fn body_preread_size(conf: &mut Http2Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.body_preread_size = line.size(0)?;
    // A window has 31 bits (RFC 9113, section 6.9.1).
    if conf.body_preread_size > u64::from(FlowControlWindow::MAX) {
        let most = FlowControlWindow::MAX;
        return Err(line.error(format!("the maximum body preread buffer size is {most}")));
    }
    Ok(())
}

/// nginx reserves this many bytes of its buffer, so smaller values are an error there.
const RECV_BUFFER_LEAST: u64 = 16;

fn recv_buffer_size(conf: &mut Http2Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    conf.recv_buffer_size = line.size(0)?;
    if conf.recv_buffer_size <= RECV_BUFFER_LEAST {
        return Err(line.error("\"http2_recv_buffer_size\" directive value is too small"));
    }
    Ok(())
}

fn streams_index_size(_: &mut Http2Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let text = line.text(0);
    let number: Option<u64> = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok());
    match number {
        Some(number) if number.is_power_of_two() => Ok(()),
        Some(_) => Err(line.error("\"http2_streams_index_size\" directive must be a power of two")),
        None => Err(line.error("\"http2_streams_index_size\" directive invalid number")),
    }
}

/// Checks a size for nginx's memory pools. The bounds are those of its allocator.
pub(super) fn check_pool_size(line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    match line.size(0)? {
        0..112 => Err(line.error("the pool size must be no less than 112")),
        size if size % 16 != 0 => Err(line.error("the pool size must be a multiple of 16")),
        _ => Ok(()),
    }
}
