//! `upstream` in stream: groups of servers for `proxy_pass`.
//!
//! The groups and all that happens in them are in `net::upstream`; most directives are read in
//! [`crate::shared::upstream_block`]. Groups of http and of stream are separate, even if they have the
//! same name.
//!
//! ```nginx
//! upstream db {
//!     least_conn;
//!     server 10.0.0.1:5432 max_conns=100;
//!     server 10.0.0.2:5432 backup;
//! }
//! ```

use std::cell::RefCell;

use ::stream::stream_loop::StreamLoop;
use ::stream::upstream::StreamGroups;
use ::stream::{StreamModule, StreamSession};
use conf::{
    AddressHost, Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HostPort, RepeatRule,
    STREAM, STREAM_UPSTREAM, Setter, parse,
};
use net::resolver::ResolverConf;
use net::upstream::{NameWatchers, TimeMetric};

use crate::shared::upstream_block::{self, GroupDraft};
use crate::shared::upstream_block_rows;

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "upstream",
    doc: "Groups of upstream servers: load balancing, failures, limits.",
    main: &DIRECTIVES,
    blocks: &[&BLOCK],
    commit: |site, zones| site.main_confs.get::<StreamGroups>().adopt_states(zones),
    start,
    stop: |_| drop(NAMES.take()),
    ..StreamModule::EMPTY
};

/// The words of `least_time` in stream.
const TIMES: &[(&str, TimeMetric)] = &[
    ("connect", TimeMetric::Connect),
    ("first_byte", TimeMetric::Header),
    ("last_byte", TimeMetric::LastByte),
];

/// The main context's struct is the registry of groups itself, found by its type.
static DIRECTIVES: DirectiveTable<StreamGroups> =
    DirectiveTable::<StreamGroups>::new(&[Directive {
        name: "upstream",
        syntax: "name { ... }",
        default: None,
        contexts: STREAM,
        since: "0.1",
        doc: "Defines a group of servers for `proxy_pass`.",
        set: Setter::Block(Arity::ONE, RepeatRule::Many, |_, line| block(line)),
    }])
    .finish(|groups, _, level| {
        groups.clone_from(level.shared::<StreamGroups>());
        Ok(())
    });

/// The directives of the block, fewer than in http: a session has no request to queue, and its
/// connection is not kept.
static BLOCK: DirectiveTable<GroupDraft> = DirectiveTable::new(&[
    row(
        "server",
        "address [parameters]",
        "A server of the group: `host:port` or `unix:path`. Parameters: `weight=n`; `max_conns=n`, the maximum number \
         of concurrent sessions, over all event loops; `max_fails=n` failures within `fail_timeout=time` make it \
         unavailable for that time; `slow_start=time`, during which a recovered server returns to its full weight; \
         `backup`, `down`; `resolve`, to follow changes of the addresses of the name, and with `service=name` of its \
         SRV records. A name that cannot be resolved at start-up causes a warning, and is resolved again until it \
         succeeds.",
        Setter::Custom(Arity::at_least(1), RepeatRule::Many, server),
    ),
    upstream_block_rows::zone(STREAM_UPSTREAM),
    upstream_block_rows::state(STREAM_UPSTREAM),
    upstream_block_rows::hash(STREAM_UPSTREAM),
    upstream_block_rows::least_conn(
        STREAM_UPSTREAM,
        "Chooses the server with the fewest sessions in progress, relative to its weight.",
    ),
    row(
        "least_time",
        "connect | first_byte | last_byte [inflight]",
        "Chooses the server with the lowest expected time, by its average time to connect (`connect`), to the first \
         byte (`first_byte`) or to the last (`last_byte`), and its sessions in progress. With `inflight`, sessions \
         that have not ended are taken into account too.",
        Setter::Custom(Arity::between(1, 2), RepeatRule::Once, |draft, line| {
            upstream_block::read_least_time(draft, line, TIMES)
        }),
    ),
    row(
        "random",
        "[two [method]]",
        "Chooses a random server, by weight. With `two`, chooses the better of two random servers: that with fewer \
         sessions in progress (`least_conn`, the default) or the lower time (`least_time=connect`, `first_byte`, \
         `last_byte`).",
        Setter::Custom(Arity::between(0, 2), RepeatRule::Once, |draft, line| {
            upstream_block::read_random(draft, line, TIMES)
        }),
    ),
    upstream_block_rows::resolver(
        STREAM_UPSTREAM,
        "The DNS servers for the names of this group. By default those of `stream`, otherwise those of the system.",
    ),
    upstream_block_rows::resolver_timeout(
        STREAM_UPSTREAM,
        "The timeout for resolving a name; by default that of `stream`.",
    ),
]);

/// A directive of the `upstream` block.
const fn row(
    name: &'static str,
    syntax: &'static str,
    doc: &'static str,
    set: Setter<GroupDraft>,
) -> Directive<GroupDraft> {
    Directive {
        name,
        syntax,
        default: None,
        contexts: STREAM_UPSTREAM,
        since: "0.1",
        doc,
        set,
    }
}

/// Reads `server`. The port is mandatory, since there is no protocol with a default one; SRV
/// records have their own.
fn server(draft: &mut GroupDraft, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let is_service = line
        .args()
        .iter()
        .any(|word| parse::parameter(&word.text, "service").is_some());
    if let Ok(HostPort {
        host, port: None, ..
    }) = HostPort::parse_peer(line.text(0))
        && !matches!(host, AddressHost::Unix(_))
        && !is_service
    {
        return Err(line.error_at(0, format!("no port in upstream \"{}\"", line.text(0))));
    }
    upstream_block::read_server(draft, line)
}

/// Reads an `upstream` block.
fn block(line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let mut rows: conf::TableSet = vec![&BLOCK];
    rows.extend(::stream::configure::upstream_tables(line));
    let mut settings = upstream_block::read_block::<StreamSession>(line, rows, STREAM_UPSTREAM)?;
    // A connection ends with its session and cannot be used again.
    settings.keepalive = None;
    let groups = line.shared::<StreamGroups>().clone();
    groups
        .define_group(settings)
        .map_err(|message| line.error_at(0, message))?;
    Ok(())
}

rt::local! {
    /// The name lookups of the current configuration, on the event loop that runs them.
    static NAMES: RefCell<Option<NameWatchers>> = const { RefCell::new(None) };
}

/// Starts to look up names: on one event loop, for all of them.
fn start(engine: &StreamLoop) {
    if engine.index != 0 {
        return;
    }
    let site = engine.site();
    let names = NameWatchers::watch_group_names(
        site.main_confs.get::<StreamGroups>(),
        site.outer_confs.get::<ResolverConf>(),
        &engine.log(),
    );
    // Drops those of the previous configuration, which end with that.
    NAMES.replace(Some(names));
}
