//! `upstream` in stream: groups of servers that sessions are passed to.
//!
//! The groups and everything that happens in them are in `net::upstream`, the reading of most lines in
//! [`crate::shared::upstream`]. Groups of http and of stream are apart, also where they have the same name.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;

use ::stream::Module;
use ::stream::chooser::{Kept, Pending};
use ::stream::core::ServerConf;
use ::stream::engine::StreamLoop;
use conf::{
    Address, Arity, Confs, Diagnostic, Directive, Host, Line, Repeat, STREAM, STREAM_UPSTREAM,
    Setter, Table, dispatch, parse,
};
use net::resolver::Resolver;
use net::upstream::{Balance, Metric, Names};

use crate::shared::upstream::{self, Draft};

pub(crate) static MODULE: Module = Module {
    name: "upstream",
    doc: "Groups of upstream servers: load balancing, failures, limits.",
    main: &DIRECTIVES,
    blocks: &[&BLOCK],
    commit: |site, zones| {
        site.main_confs.get::<Groups>().commit(zones);
        Ok(())
    },
    start,
    stop: |_| drop(NAMES.take()),
    ..Module::EMPTY
};

/// Words of `least_time` in stream.
const TIMES: &[(&str, Metric)] = &[
    ("connect", Metric::Connect),
    ("first_byte", Metric::Header),
    ("last_byte", Metric::LastByte),
];

/// The groups of stream.
#[derive(Clone)]
pub(crate) struct Groups(net::upstream::Groups);

impl Default for Groups {
    fn default() -> Self {
        Groups(net::upstream::Groups::of("stream "))
    }
}

impl Deref for Groups {
    type Target = net::upstream::Groups;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The struct of the main context is the registry itself.
static DIRECTIVES: Table<Groups> = Table::<Groups>::new(&[Directive {
    name: "upstream",
    syntax: "name { ... }",
    default: None,
    contexts: STREAM,
    since: "0.1",
    doc: "Defines a group of servers for `proxy_pass`.",
    set: Setter::Block(Arity::ONE, Repeat::Many, |_, line| block(line)),
}])
.finish(|groups, _, level| {
    groups.clone_from(level.shared::<Groups>());
    Ok(())
});

static BLOCK: Table<Draft> = Table::new(&[
    row(
        "server",
        "address [parameters]",
        "A server of the group: `host:port` or `unix:path`. Parameters: `weight=n`; `max_conns=n`, the maximum number \
         of concurrent sessions, over all event loops; `max_fails=n` failures within `fail_timeout=time` make it \
         unavailable for that time; `slow_start=time`, during which a recovered server returns to its full weight; \
         `backup`, `down`; `resolve`, to follow changes of the addresses of the name, and with `service=name` of its \
         SRV records. A name that cannot be resolved at start-up causes a warning, and is resolved again until it \
         succeeds.",
        Setter::Custom(Arity::at_least(1), Repeat::Many, server),
    ),
    row(
        "zone",
        "name [size]",
        "Accepted. The state of a group is always shared by all event loops and kept across reloads.",
        Setter::Custom(Arity::between(1, 2), Repeat::Once, |_, line| {
            upstream::zone(line)
        }),
    ),
    row(
        "hash",
        "key [consistent]",
        "Chooses the server by a hash of the key. With `consistent` (ketama), adding or removing a server moves only \
         the keys of that server.",
        Setter::Custom(Arity::between(1, 2), Repeat::Once, upstream::hash),
    ),
    row(
        "least_conn",
        "",
        "Chooses the server with the fewest sessions in progress, relative to its weight.",
        Setter::Custom(Arity::NONE, Repeat::Once, |draft, line| {
            upstream::method(draft, line, Balance::LeastConn);
            Ok(())
        }),
    ),
    row(
        "least_time",
        "connect | first_byte | last_byte [inflight]",
        "Chooses the server with the lowest expected time, by its average time to connect (`connect`), to the first \
         byte (`first_byte`) or to the last (`last_byte`), and its sessions in progress. With `inflight`, sessions \
         that have not ended are taken into account too.",
        Setter::Custom(Arity::between(1, 2), Repeat::Once, |draft, line| {
            upstream::least_time(draft, line, TIMES)
        }),
    ),
    row(
        "random",
        "[two [method]]",
        "Chooses a random server, by weight. With `two`, chooses the better of two random servers: that with fewer \
         sessions in progress (`least_conn`, the default) or the lower time (`least_time=connect`, `first_byte`, \
         `last_byte`).",
        Setter::Custom(Arity::between(0, 2), Repeat::Once, |draft, line| {
            upstream::random(draft, line, TIMES)
        }),
    ),
    row(
        "resolver",
        "address ... [valid=time] [ipv4=on|off] [ipv6=on|off] [status_zone=zone]",
        "The DNS servers for the names of this group. By default those of `stream`, otherwise those of the system.",
        Setter::Custom(Arity::at_least(1), Repeat::Once, |draft, line| {
            draft.resolver = Some(Resolver::from_line(line)?);
            Ok(())
        }),
    ),
    row(
        "resolver_timeout",
        "time",
        "The timeout for resolving a name; by default that of `stream`.",
        Setter::Millis(|draft| &mut draft.resolver_timeout),
    ),
]);

const fn row(
    name: &'static str,
    syntax: &'static str,
    doc: &'static str,
    set: Setter<Draft>,
) -> Directive<Draft> {
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

/// There is no protocol that would say which port is meant.
fn server(draft: &mut Draft, line: &mut Line) -> Result<(), Diagnostic> {
    let is_service = line
        .args()
        .iter()
        .any(|word| parse::parameter(&word.text, "service").is_some());
    if let Ok(Address {
        host, port: None, ..
    }) = Address::peer(line.text(0))
        && !matches!(host, Host::Unix(_))
        && !is_service
    {
        return Err(line.error_at(0, format!("no port in upstream \"{}\"", line.text(0))));
    }
    upstream::server(draft, line)
}

/// Reads an `upstream` block.
fn block(line: &mut Line) -> Result<(), Diagnostic> {
    let mut tables: conf::TableSet = vec![&BLOCK];
    tables.extend(::stream::configure::upstream_tables(line));
    let mut confs = Confs::new(vec![tables]);
    dispatch(
        line.node.block.nodes(),
        &mut confs,
        None,
        &mut line.level.inner(STREAM_UPSTREAM),
    );
    let draft = confs
        .get_mut::<Draft>()
        .map(std::mem::take)
        .unwrap_or_default();
    let chooser = line.shared::<Pending>().0.take();
    let mut settings = draft.finished(line, chooser.is_some())?;
    // A session's connection is over with it.
    settings.keepalive = None;
    settings.chooser = chooser.map(|chooser| Arc::new(Kept(chooser)) as _);
    let groups = line.shared::<Groups>().clone();
    groups
        .define(settings)
        .map_err(|message| line.error_at(0, message))?;
    Ok(())
}

thread_local! {
    /// The look-ups of the generation that is served, on the loop that does them.
    static NAMES: RefCell<Option<Names>> = const { RefCell::new(None) };
}

/// Begins to look up names: on one loop, for all of them.
fn start(engine: &StreamLoop) {
    if engine.index != 0 {
        return;
    }
    let site = engine.site();
    let ServerConf {
        resolver,
        resolver_timeout,
        ..
    } = site.outer_confs.get::<ServerConf>();
    let names = Names::follow(
        site.main_confs.get::<Groups>(),
        resolver,
        *resolver_timeout,
        &engine.log,
    );
    // Those of the former generation end here.
    NAMES.replace(Some(names));
}
