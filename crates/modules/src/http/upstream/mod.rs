//! `upstream`: groups of servers that requests are passed to.
//!
//! ```nginx
//! upstream backend {
//!     least_conn;
//!     server app1.example.com max_conns=32 weight=2;
//!     server 10.0.0.2:8080    max_conns=16 fail_timeout=5s;
//!     server unix:/run/app    backup;
//!     queue  100 timeout=10s;
//!     keepalive 64;
//! }
//! ```
//!
//! The groups and all that happens in them are in `net::upstream`; the directives are here. The
//! block has a table of its own, which is read into a [`GroupDraft`].
//!
//! A name that cannot be resolved at start-up is a warning, and 502 until it can; nginx does not
//! start. All event loops share the state of a group, with or without `zone`.

mod shared_sessions;
mod sticky;

use std::cell::RefCell;
use std::time::Duration;

use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP, RepeatRule, Setter,
    UPSTREAM, parse,
};
use http::core::resolver::ResolverConf;
use http::http_loop::HttpLoop;
use http::{HttpModule, Request};
use net::upstream::{IpHash, NameWatchers, QueueSettings, TimeMetric, UpstreamGroups};

use crate::shared::limit_req_sync::report_missing_redis;
use crate::shared::upstream_block::{self, GroupDraft};
use crate::shared::upstream_block_rows;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "upstream",
    doc: "Groups of upstream servers: load balancing, failures, queues, keep-alive connections.",
    main: &DIRECTIVES,
    blocks: &[&BLOCK],
    commit: |site, zones| site.main_confs.get::<UpstreamGroups>().adopt_states(zones),
    metrics: |site, sink| site.main_confs.get::<UpstreamGroups>().tell_metrics(sink),
    complete: report_missing_redis,
    start,
    stop: |_| {
        NAMES.take();
        SESSIONS.take();
        net::upstream::close_idle();
    },
    ..HttpModule::EMPTY
};

/// The words of `least_time` in http.
const TIMES: &[(&str, TimeMetric)] = &[
    ("header", TimeMetric::Header),
    ("last_byte", TimeMetric::LastByte),
];

/// The default `timeout` of `queue`.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(60);

/// The main context's struct is the registry of groups itself, so that the exchange finds it by its
/// type.
static DIRECTIVES: DirectiveTable<UpstreamGroups> =
    DirectiveTable::<UpstreamGroups>::new(&[Directive {
        name: "upstream",
        syntax: "name { ... }",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "Defines a group of servers for `proxy_pass` and the other `*_pass` directives.",
        set: Setter::Block(Arity::ONE, RepeatRule::Many, |_, line| block(line)),
    }])
    .finish(|groups, _, level| {
        groups.clone_from(level.shared::<UpstreamGroups>());
        Ok(())
    });

/// The directives of the block.
static BLOCK: DirectiveTable<GroupDraft> = DirectiveTable::new(&[
    Directive {
        name: "server",
        syntax: "address [parameters]",
        default: None,
        contexts: UPSTREAM,
        since: "0.1",
        doc: "A server of the group: `host[:port]` or `unix:path`. Parameters: `weight=n`; `max_conns=n`, the maximum \
              number of connections in use, over all event loops; `max_fails=n` failures within `fail_timeout=time` \
              make it unavailable for that time; `slow_start=time`, during which a recovered server returns to its \
              full weight; `backup`, `down`, `drain`; `route=text` for `sticky`; `resolve`, to follow changes of the \
              addresses of the name, and with `service=name` of its SRV records. A name that cannot be resolved at \
              start-up causes a warning, and is resolved again until it succeeds.",
        set: Setter::Custom(
            Arity::at_least(1),
            RepeatRule::Many,
            upstream_block::read_server,
        ),
    },
    upstream_block_rows::zone(UPSTREAM),
    upstream_block_rows::state(UPSTREAM),
    upstream_block_rows::hash(UPSTREAM),
    Directive {
        name: "ip_hash",
        syntax: "",
        default: None,
        contexts: UPSTREAM,
        since: "0.1",
        doc: "Chooses the server by the client address: the first three octets of an IPv4 address, or the whole IPv6 \
              address.",
        set: Setter::Custom(Arity::NONE, RepeatRule::Once, |draft, line| {
            upstream_block::set_method(draft, line, IpHash);
            Ok(())
        }),
    },
    upstream_block_rows::least_conn(
        UPSTREAM,
        "Chooses the server with the fewest connections in use, relative to its weight.",
    ),
    Directive {
        name: "least_time",
        syntax: "header | last_byte [inflight]",
        default: None,
        contexts: UPSTREAM,
        since: "0.1",
        doc: "Chooses the server with the lowest expected response time, by its average time to the response header \
              (`header`) or to the complete response (`last_byte`) and its connections in use. With `inflight`, \
              requests in progress are taken into account too.",
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, |draft, line| {
            upstream_block::read_least_time(draft, line, TIMES)
        }),
    },
    Directive {
        name: "random",
        syntax: "[two [method]]",
        default: None,
        contexts: UPSTREAM,
        since: "0.1",
        doc: "Chooses a random server, by weight. With `two`, chooses the better of two random servers: that with \
              fewer connections in use (`least_conn`, the default) or the lower response time (`least_time=header`, \
              `least_time=last_byte`).",
        set: Setter::Custom(Arity::between(0, 2), RepeatRule::Once, |draft, line| {
            upstream_block::read_random(draft, line, TIMES)
        }),
    },
    Directive {
        // As in nginx, a number per process or loop; the loops share the connections.
        name: "keepalive",
        syntax: "connections [local]",
        default: Some("32 local"),
        contexts: UPSTREAM,
        since: "0.1",
        doc: "The number of idle connections to keep, per event loop; 0 disables this. All event loops share the \
              total. With `local`, a connection is reused only by the location that opened it.",
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, keepalive),
    },
    Directive {
        name: "keepalive_requests",
        syntax: "number",
        default: Some("1000"),
        contexts: UPSTREAM,
        since: "0.1",
        doc: "The maximum number of requests per connection.",
        set: Setter::Number(|draft| &mut draft.keepalive.requests, 0, i64::MAX),
    },
    Directive {
        name: "keepalive_time",
        syntax: "time",
        default: Some("1h"),
        contexts: UPSTREAM,
        since: "0.1",
        doc: "The maximum age of a connection; an older one is closed after its current request.",
        set: Setter::Millis(|draft| &mut draft.keepalive.time),
    },
    Directive {
        name: "keepalive_timeout",
        syntax: "timeout",
        default: Some("60s"),
        contexts: UPSTREAM,
        since: "0.1",
        doc: "How long an idle connection is kept open.",
        set: Setter::Millis(|draft| &mut draft.keepalive.timeout),
    },
    Directive {
        name: "queue",
        syntax: "number [timeout=time]",
        default: None,
        contexts: UPSTREAM,
        since: "0.1",
        doc: "The number of requests that may wait, first in first out over all event loops, while every server is at \
              its `max_conns`, and for how long (60 seconds). If the queue is full, a request gets 503 with \
              `Retry-After`. A client that disconnects leaves the queue.",
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Once, queue),
    },
    upstream_block_rows::resolver(
        UPSTREAM,
        "The DNS servers for the names of this group. By default those of `http`, otherwise those of the system.",
    ),
    upstream_block_rows::resolver_timeout(
        UPSTREAM,
        "The timeout for resolving a name; by default that of `http`.",
    ),
    Directive {
        name: "sticky",
        syntax: "cookie name [expires=time] [domain=domain] [httponly] [samesite=strict|lax|none|$variable] [secure] \
                 [path=path] | route $variable ... | learn create=$variable lookup=$variable zone=name:size \
                 [timeout=time] [header] [sync=redis cluster=name]",
        default: None,
        contexts: UPSTREAM,
        since: "0.1",
        doc: "Session persistence: sends a client to the same server as before, by a cookie that Weir sets (`cookie`), \
              by a variable with the server's `route` (`route`), or by a session that the application creates and Weir \
              remembers (`learn`). With `sync=redis`, the members of the `cluster` tell each other by its Redis what they \
              have learned, within a moment; no request waits for that.",
        set: Setter::Custom(Arity::at_least(2), RepeatRule::Once, sticky::read),
    },
]);

rt::local! {
    /// The name lookups of the current configuration, on the event loop that runs them.
    static NAMES: RefCell<Option<NameWatchers>> = const { RefCell::new(None) };
}

rt::local! {
    /// The tasks that share the sessions of `sticky learn`.
    static SESSIONS: RefCell<Vec<rt::JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

/// Starts to look up names: on one event loop, for all of them.
fn start(engine: &HttpLoop) {
    if engine.index != 0 {
        return;
    }
    let site = engine.site();
    let names = NameWatchers::watch_group_names(
        site.main_confs.get::<UpstreamGroups>(),
        site.outer_confs.get::<ResolverConf>(),
        &engine.log(),
    );
    // Drops those of the previous configuration, which end with that.
    NAMES.replace(Some(names));
    drop(SESSIONS.replace(shared_sessions::start(engine)));
}

/// Reads an `upstream` block.
fn block(line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let mut rows: conf::TableSet = vec![&BLOCK];
    rows.extend(::http::configure::upstream_tables(line));
    let settings = upstream_block::read_block::<Request>(line, rows, UPSTREAM)?;
    // Cloned, because the registry must not stay borrowed from the line while an error about the line is built.
    let groups = line.shared::<UpstreamGroups>().clone();
    groups
        .define_group(settings)
        .map_err(|message| line.error_at(0, message))?;
    Ok(())
}

/// `keepalive`.
fn keepalive(draft: &mut GroupDraft, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let count = parse::number(line.text(0)).and_then(|count| usize::try_from(count).ok());
    let count = count.ok_or_else(|| {
        line.error_at(
            0,
            format!(
                "invalid value \"{}\" in \"{}\" directive",
                line.text(0),
                line.name()
            ),
        )
    })?;
    let local = match line.get(1) {
        None => false,
        Some(word) if word.is("local") => true,
        Some(_) => return Err(line.invalid_parameter(1)),
    };
    draft.keepalive.connections = count;
    draft.keepalive.local = local;
    Ok(())
}

/// `queue`.
fn queue(draft: &mut GroupDraft, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let length = usize::try_from(line.number(0, 1, i64::from(u32::MAX))?).unwrap_or(usize::MAX);
    let timeout = match line.get(1) {
        None => QUEUE_TIMEOUT,
        Some(word) => {
            let time = parse::parameter(&word.text, "timeout").and_then(parse::millis);
            // A time of zero would be a queue in which no request ever waits.
            time.filter(|time| !time.is_zero())
                .ok_or_else(|| line.invalid_parameter(1))?
        }
    };
    draft.queue = Some(QueueSettings { length, timeout });
    Ok(())
}
