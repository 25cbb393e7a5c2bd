//! The engine's own directives.

use std::sync::Arc;
use std::time::Duration;

use bstr::BString;
use conf::contexts::STREAM_AND_SERVER;
use conf::{
    Arity, Diagnostic, Directive, Line, Pattern, Repeat, STREAM, STREAM_SERVER, Setter, Table,
};
use host::error_log::{LogFiles, Logger, MainLog, Target};
use net::resolver::{Resolver, Settings};
use net::server_name::ServerName;

use net::endpoint::Listen;

use crate::listen;
use crate::session::Session;

/// Settings of `stream` as a whole: it has none that takes effect.
#[derive(Clone, Debug, Default)]
pub struct MainConf;

/// Rows that stand in `stream` only.
pub static MAIN: Table<MainConf> = Table::new(&[
    hash_row(
        "server_names_hash_max_size",
        "Accepted; the table of server names sizes itself.",
    ),
    hash_row(
        "server_names_hash_bucket_size",
        "Accepted; the table of server names sizes itself.",
    ),
    hash_row(
        "variables_hash_max_size",
        "Accepted; the table of variables sizes itself.",
    ),
    hash_row(
        "variables_hash_bucket_size",
        "Accepted; the table of variables sizes itself.",
    ),
    Directive {
        name: "server",
        syntax: "{ … }",
        default: None,
        contexts: STREAM,
        since: "0.1",
        doc: "Defines a server: the addresses it listens on, and what it does with sessions.",
        set: Setter::Deferred(Arity::NONE, crate::configure::server),
    },
]);

/// A directive of nginx that sizes a hash table. It is checked and has no effect, because the tables here size
/// themselves; to refuse it would break configurations that work.
const fn hash_row(name: &'static str, doc: &'static str) -> Directive<MainConf> {
    Directive {
        name,
        syntax: "size",
        default: None,
        contexts: STREAM,
        since: "0.1",
        doc,
        set: Setter::Custom(Arity::ONE, Repeat::Once, |_, line| {
            line.number(0, 0, i64::MAX).map(drop)
        }),
    }
}

/// Settings of a server.
#[derive(Clone)]
pub struct ServerConf {
    /// Where it listens.
    pub listens: Vec<Listen>,
    /// The names that the server answers to.
    pub names: Vec<ServerName<Pattern>>,
    /// The first name.
    pub name: BString,
    /// The error log.
    pub log: Logger,
    /// Resolves names that contain variables. Without a `resolver` directive it has no servers.
    pub resolver: Arc<Resolver>,
    /// How long an answer of the resolver is waited for.
    pub resolver_timeout: Duration,
    /// Time for a client to send its PROXY protocol header.
    pub proxy_protocol_timeout: Duration,
    /// Whether small packets are sent at once.
    pub tcp_nodelay: bool,
    /// The most of the first bytes of a client that handlers may look at.
    pub preread_buffer_size: u64,
    /// The time for them to arrive.
    pub preread_timeout: Duration,
}

impl Default for ServerConf {
    fn default() -> Self {
        ServerConf {
            listens: Vec::new(),
            names: Vec::new(),
            name: BString::default(),
            log: Logger::default(),
            resolver: Resolver::new(Settings::default(), Logger::default()),
            resolver_timeout: Duration::ZERO,
            proxy_protocol_timeout: Duration::ZERO,
            tcp_nodelay: false,
            preread_buffer_size: 0,
            preread_timeout: Duration::ZERO,
        }
    }
}

/// Rows that belong to a server.
pub static SERVER: Table<ServerConf> = Table::<ServerConf>::new(&[
    Directive {
        name: "listen",
        syntax: "address:port [udp] [proxy_protocol] [backlog=number] [reuseport] …",
        default: None,
        contexts: STREAM_SERVER,
        since: "0.1",
        doc: "The address and port, or unix socket, on which the server accepts sessions, with socket options. The \
              datagrams of one client form a session; without `reuseport`, one event loop serves all sessions of a UDP \
              port.",
        set: Setter::Custom(Arity::at_least(1), Repeat::Many, listen::set),
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
        set: Setter::Custom(Arity::at_least(1), Repeat::Many, server_name),
    },
    Directive {
        name: "error_log",
        syntax: "file [level] | stderr | syslog:… | memory:size",
        default: None,
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "Where to log errors of sessions, and the minimum level to log.",
        set: Setter::Custom(Arity::at_least(1), Repeat::Fresh(|c| c.log = Logger::default()), error_log),
    },
    Directive {
        name: "resolver",
        syntax: "address … [valid=time] [ipv4=on|off] [ipv6=on|off] [status_zone=zone]",
        default: None,
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "The DNS servers used to resolve names at run time. Answers are cached for their TTL, or for `valid`.",
        set: Setter::Custom(Arity::at_least(1), Repeat::Once, |c, line| {
            c.resolver = Resolver::from_line(line)?;
            Ok(())
        }),
    },
    Directive {
        name: "resolver_timeout",
        syntax: "time",
        default: Some("30s"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "The timeout for resolving a name.",
        set: Setter::Millis(|c| &mut c.resolver_timeout),
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
    if outer.is_none() && level.seen("error_log").is_none() {
        conf.log = level.shared::<MainLog>().0.clone();
    }
    Ok(())
});

fn error_log(conf: &mut ServerConf, line: &mut Line) -> Result<(), Diagnostic> {
    let words: Vec<&[u8]> = line
        .args()
        .iter()
        .map(|word| word.text.as_slice())
        .collect();
    let prefix = line.level.build.in_prefix(conf::Access::Opened, "");
    let target = Target::parse(&words, &prefix).map_err(|message| line.error(message))?;
    conf.log = conf.log.with(target, line.shared::<LogFiles>());
    Ok(())
}

fn server_name(conf: &mut ServerConf, line: &mut Line) -> Result<(), Diagnostic> {
    for index in 0..line.args().len() {
        let name = ServerName::parse(line, index, |line, pattern, caseless| {
            Pattern::compile::<Session>(line, index, pattern, caseless)
        })?;
        // The first name of all lines is the one that `$server_name` shows.
        if conf.names.is_empty() {
            conf.name = name.display(&line.arg(index).text);
        }
        conf.names.push(name);
    }
    Ok(())
}
