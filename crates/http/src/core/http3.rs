//! Settings of HTTP/3: the directives of nginx's `ngx_http_v3_module` that concern requests. Those of QUIC are with the
//! transport.

use conf::{Directive, DirectiveTable, HTTP_SERVER, Setter};

/// The values of the directives below, for one server.
#[derive(Clone, Debug, Default)]
pub struct Http3Conf {
    /// Whether the server speaks HTTP/3 on its addresses with `quic`.
    pub on: bool,
    /// Whether the server also speaks HTTP/0.9 there (`hq-interop`).
    pub hq: bool,
    /// The maximum number of requests that a client may have open at the same time.
    pub max_concurrent_streams: i64,
    /// How much of a stream the client may send before it is read, in bytes.
    pub stream_buffer_size: u64,
}

/// The directives.
pub static DIRECTIVES: DirectiveTable<Http3Conf> = DirectiveTable::new(&[
    Directive {
        name: "http3",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Enables HTTP/3 on addresses with the `quic` parameter of `listen`.",
        set: Setter::Flag(|c| &mut c.on),
    },
    Directive {
        name: "http3_hq",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Enables HTTP/0.9 over QUIC, the protocol `hq-interop` of interoperability tests.",
        set: Setter::Flag(|c| &mut c.hq),
    },
    Directive {
        name: "http3_max_concurrent_streams",
        syntax: "number",
        default: Some("128"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "The maximum number of concurrent requests per connection.",
        set: Setter::Number(|c| &mut c.max_concurrent_streams, 0, u32::MAX as i64),
    },
    Directive {
        name: "http3_stream_buffer_size",
        syntax: "size",
        default: Some("64k"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "How much of each stream the client may send before the server has read it.",
        set: Setter::Size(|c| &mut c.stream_buffer_size),
    },
]);
