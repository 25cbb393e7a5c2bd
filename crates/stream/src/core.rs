//! The engine's own directives.

use std::sync::Arc;
use std::time::Duration;

use bstr::BString;
use conf::contexts::STREAM_AND_SERVER;
use conf::{Arity, Diagnostic, Directive, Line, Repeat, STREAM, STREAM_SERVER, Setter, Table};
use host::error_log::{LogFiles, Logger, MainLog, Target};
use net::resolver::{Resolver, Settings};
use net::server_name::ServerName;

use net::endpoint::Listen;

use crate::listen;

/// Settings of `stream` as a whole: none that has an effect.
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
    pub names: Vec<ServerName>,
    /// The first name.
    pub name: BString,
    /// The error log.
    pub log: Logger,
    /// Who knows addresses of names that are made of variables; one without servers where no directive says who could.
    pub resolver: Arc<Resolver>,
    /// How long an answer is waited for.
    pub resolver_timeout: Duration,
    /// Time for a client to send its PROXY protocol header.
    pub proxy_protocol_timeout: Duration,
    /// Small packets are sent at once.
    pub tcp_nodelay: bool,
    /// How many of a client's first bytes are looked at.
    pub preread_buffer_size: u64,
    /// Time for them to come.
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
        set: Setter::Custom(Arity::at_least(1), Repeat::Many, |c, line| listen::set(&mut c.listens, line)),
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
        set: Setter::Custom(Arity::at_least(1), Repeat::Many, |c, line| {
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
