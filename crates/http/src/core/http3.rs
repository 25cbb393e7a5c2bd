//! Settings of HTTP/3 and QUIC: the directives of nginx's `ngx_http_v3_module`, and one of our own.
//!
//! What concerns a connection before its server name is known (`quic_retry`, `quic_gso`, `quic_host_key`) is the default
//! server's at its address, as in nginx.

use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP_SERVER, PathUse, RepeatRule,
    Setter,
};
use net::quic::{CongestionControl, QuicEndpointSettings, QuicSecret, QuicTransport};

/// The values of the directives below, for one server.
#[derive(Clone, Debug, Default)]
pub struct Http3Conf {
    /// Whether the server speaks HTTP/3 where it listens for QUIC.
    pub on: bool,
    /// The maximum number of requests that a client may have under way.
    pub max_concurrent_streams: i64,
    /// The size of the buffer of a stream in bytes.
    pub stream_buffer_size: u64,
    /// Every client has to prove its address before its handshake.
    pub retry: bool,
    /// The system divides large sends into datagrams.
    pub gso: bool,
    /// What tokens and connection ids are made with; `None`: the secret of the server's processes.
    pub host_key: Option<QuicSecret>,
    /// Accepted without effect.
    pub connection_ids: i64,
    /// How much may be on the way.
    pub congestion: CongestionControl,
}

/// The directives.
pub static DIRECTIVES: DirectiveTable<Http3Conf> = DirectiveTable::new(&[
    Directive {
        name: "http3",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Enables HTTP/3 at the addresses with `listen … quic`. Clients learn of it by a field such as \
              `add_header Alt-Svc 'h3=\":443\"; ma=86400';`.",
        set: Setter::Flag(|c| &mut c.on),
    },
    Directive {
        name: "http3_hq",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "HTTP/0.9 over QUIC (`hq-interop`), which interoperability tests use. Only `off` is supported.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, |_, line| {
            match line.flag(0)? {
                false => Ok(()),
                true => Err(line.error_at(0, "\"http3_hq on\" is not supported yet")),
            }
        }),
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
        doc: "How much of a request body the client may send before the server has read it. Four times as much may be \
              waiting on all streams of a connection.",
        set: Setter::Size(|c| &mut c.stream_buffer_size),
    },
    Directive {
        name: "quic_retry",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Makes every client prove its address before its handshake begins, which takes one round trip more. Without \
              it this is done only while very many handshakes are under way.",
        set: Setter::Flag(|c| &mut c.retry),
    },
    Directive {
        name: "quic_gso",
        syntax: "on | off",
        default: Some("on"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Lets the system divide large sends into datagrams (UDP_SEGMENT), where it can: one system call sends many.",
        set: Setter::Flag(|c| &mut c.gso),
    },
    Directive {
        name: "quic_host_key",
        syntax: "file",
        default: None,
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "A file with a secret that encrypts connection ids and tokens, and signs stateless resets. By default it is \
              random, and the same until the server stops. With a file, clients notice at once that a server was started \
              again, and several machines accept each other's tokens.",
        set: Setter::Custom(Arity::ONE, RepeatRule::Once, host_key),
    },
    Directive {
        name: "quic_active_connection_id_limit",
        syntax: "number",
        default: Some("2"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "Accepted; has no effect. The server stores up to five connection ids of a client.",
        set: Setter::Number(|c| &mut c.connection_ids, 0, u32::MAX as i64),
    },
    Directive {
        name: "quic_congestion_control",
        syntax: "cubic | bbr",
        default: Some("cubic"),
        contexts: HTTP_SERVER,
        since: "0.1",
        doc: "The congestion control of QUIC connections: `cubic` (RFC 9438) treats loss as congestion, `bbr` measures the \
              path. Both send evenly, without bursts.",
        set: Setter::Word(&["cubic", "bbr"], |c, i| {
            c.congestion = [CongestionControl::Cubic, CongestionControl::Bbr][i];
        }),
    },
]);

fn host_key(conf: &mut Http3Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let path = line.path(PathUse::Opened, line.arg(0));
    let content = line.level.build.files.read(&path);
    let content = content.map_err(|error| {
        let (path, reason) = (path.display(), base::ErrnoText(&error));
        line.error_at(0, format!("open() \"{path}\" failed{reason}"))
    })?;
    if content.is_empty() {
        let path = path.display();
        return Err(line.error_at(0, format!("\"{path}\" zero key size")));
    }
    conf.host_key = Some(QuicSecret::of_file(&content));
    Ok(())
}

impl Http3Conf {
    /// The protocols that are offered by ALPN over QUIC: none without HTTP/3.
    pub fn protocols(&self) -> Vec<Vec<u8>> {
        self.on.then(|| b"h3".to_vec()).into_iter().collect()
    }

    /// What is decided before a server name is known.
    pub(crate) fn endpoint_settings(&self, steers: bool) -> QuicEndpointSettings {
        QuicEndpointSettings {
            steers,
            retry: self.retry,
            segments: self.gso,
            secret: self.host_key.clone().unwrap_or_else(QuicSecret::common),
        }
    }

    /// The settings of connections that end if nothing is heard for this long.
    pub(crate) fn transport(&self, idle_timeout: std::time::Duration) -> QuicTransport {
        QuicTransport {
            max_streams: self.max_concurrent_streams.unsigned_abs(),
            stream_window: self.stream_buffer_size,
            idle_timeout,
            congestion: self.congestion,
            segments: self.gso,
        }
    }
}
