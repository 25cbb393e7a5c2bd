//! The engine's own directives in a server. Those of `stream` itself are in [`crate::configure`].

use std::time::Duration;

use bstr::BString;
use conf::directive_contexts::STREAM_AND_SERVER;
use conf::{Arity, Directive, DirectiveTable, RepeatRule, STREAM_SERVER, Setter};
use host::error_log::{Logger, MainLog};
use net::resolver::{ResolverConf, directives};
use net::server_name::ServerName;

use net::endpoint::ListenEntry;

use crate::listen;

/// Settings of a server.
#[derive(Clone)]
pub struct StreamServerConf {
    /// Where it listens.
    pub listens: Vec<ListenEntry>,
    /// The names that the server answers to.
    pub names: Vec<ServerName>,
    /// The first name.
    pub name: BString,
    /// The error log.
    pub log: Logger,
    /// Time for a client to send its PROXY protocol header.
    pub proxy_protocol_timeout: Duration,
    /// Whether small packets are sent at once.
    pub tcp_nodelay: bool,
    /// The most of the first bytes of a client that handlers may look at.
    pub preread_buffer_size: u64,
    /// The time for them to arrive.
    pub preread_timeout: Duration,
}

impl Default for StreamServerConf {
    fn default() -> Self {
        StreamServerConf {
            listens: Vec::new(),
            names: Vec::new(),
            name: BString::default(),
            log: Logger::default(),
            proxy_protocol_timeout: Duration::ZERO,
            tcp_nodelay: false,
            preread_buffer_size: 0,
            preread_timeout: Duration::ZERO,
        }
    }
}

/// Rows that belong to a server.
pub static SERVER: DirectiveTable<StreamServerConf> = DirectiveTable::<StreamServerConf>::new(&[
    Directive {
        name: "listen",
        syntax: "address:port [udp] [proxy_protocol] [backlog=number] [reuseport] …",
        default: None,
        contexts: STREAM_SERVER,
        since: "0.1",
        doc: "The address and port, or unix socket, on which the server accepts sessions, with socket options. The \
              datagrams of one client form a session; without `reuseport`, one event loop serves all sessions of a UDP \
              port.",
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Many, |c, line| listen::set_listen(&mut c.listens, line)),
    },
    Directive {
        name: "server_name",
        syntax: "name …",
        default: None,
        contexts: STREAM_SERVER,
        since: "0.1",
        doc: "The names of the server; the first one is `$server_name`. The name requested by a TLS client chooses \
              among the servers of an address, with `ssl` and with `ssl_preread`; other clients get the default server \
              of the address.",
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Many, |c, line| {
            net::server_name::read(&mut c.names, &mut c.name, line)
        }),
    },
    Directive {
        name: "error_log",
        syntax: "file [level] | stderr | syslog:… | memory:size",
        default: None,
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "Where to log errors of sessions, and the minimum level to log.",
        set: Setter::Custom(Arity::at_least(1), RepeatRule::Fresh(|c| c.log = Logger::default()), |c, line| {
            net::core_rows::error_log(&mut c.log, line)
        }),
    },
    Directive {
        name: "proxy_protocol_timeout",
        syntax: "time",
        default: Some("30s"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "The timeout for reading the PROXY protocol header. If it has not arrived by then, the connection is \
              closed.",
        set: Setter::Millis(|c| &mut c.proxy_protocol_timeout),
    },
    Directive {
        name: "tcp_nodelay",
        syntax: "on | off",
        default: Some("on"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "Whether to send small packets immediately (`TCP_NODELAY`), to clients and upstream servers.",
        set: Setter::Flag(|c| &mut c.tcp_nodelay),
    },
    Directive {
        name: "preread_buffer_size",
        syntax: "size",
        default: Some("16k"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "The size of the preread buffer (`ssl_preread`). A session whose first bytes cannot be parsed within it \
              is closed.",
        set: Setter::Size(|c| &mut c.preread_buffer_size),
    },
    Directive {
        name: "preread_timeout",
        syntax: "time",
        default: Some("30s"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "The timeout of the preread phase, after which the connection is closed.",
        set: Setter::Millis(|c| &mut c.preread_timeout),
    },
])
.finish(|conf, outer, level| {
    // Without a log of its own, stream writes to the one of main.
    if outer.is_none() && level.seen_directive("error_log").is_none() {
        conf.log = level.shared::<MainLog>().0.clone();
    }
    Ok(())
});

static RESOLVER_ROWS: [Directive<ResolverConf>; 2] = directives::rows(STREAM_AND_SERVER);

/// `resolver` and `resolver_timeout`.
pub static RESOLVER: DirectiveTable<ResolverConf> = DirectiveTable::new(&RESOLVER_ROWS);
