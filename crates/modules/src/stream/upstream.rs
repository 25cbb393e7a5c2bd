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
    doc: "Groups of servers that sessions are passed to: balancing, failures, limits.",
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
    doc: "Defines a group of servers that `proxy_pass` can name.",
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
        "A server of the group: `host:port` or `unix:path`. Parameters: `weight=n`; `max_conns=n`, the sessions under way \
         over all loops; `max_fails=n` failures within `fail_timeout=time` make it unavailable for that time; \
         `slow_start=time`, in which it comes back to its weight; `backup`, `down`; `resolve`, to follow the name's \
         addresses, with `service=name` those of its SRV records. A name that is unknown at the start is a warning, and is \
         looked up until it is found.",
        Setter::Custom(Arity::at_least(1), Repeat::Many, server),
    ),
    row(
        "zone",
        "name [size]",
        "Accepted. A group's state is always shared by all loops and kept over reloads.",
        Setter::Custom(Arity::between(1, 2), Repeat::Once, |_, line| {
            upstream::zone(line)
        }),
    ),
    row(
        "hash",
        "key [consistent]",
        "Chooses the server by a key. With `consistent` (ketama) a server more or less moves only the keys of that server.",
        Setter::Custom(Arity::between(1, 2), Repeat::Once, upstream::hash),
    ),
    row(
        "least_conn",
        "",
        "Chooses the server with the fewest sessions under way, relative to its weight.",
        Setter::Custom(Arity::NONE, Repeat::Once, |draft, line| {
            upstream::method(draft, line, Balance::LeastConn);
            Ok(())
        }),
    ),
    row(
        "least_time",
        "connect | first_byte | last_byte [inflight]",
        "Chooses the server that will probably be done first, by its mean time to connect, until its first byte or its last \
         one, and its sessions under way. With `inflight` those that have not ended count too.",
        Setter::Custom(Arity::between(1, 2), Repeat::Once, |draft, line| {
            upstream::least_time(draft, line, TIMES)
        }),
    ),
    row(
        "random",
        "[two [method]]",
        "Chooses the server by lot, by weight. With `two` the better of two: with fewer sessions under way (`least_conn`, \
         the default), or that takes less time (`least_time=connect`, `first_byte`, `last_byte`).",
        Setter::Custom(Arity::between(0, 2), Repeat::Once, |draft, line| {
            upstream::random(draft, line, TIMES)
        }),
    ),
    row(
        "resolver",
        "address ... [valid=time] [ipv4=on|off] [ipv6=on|off] [status_zone=zone]",
        "DNS servers for the names of this group. Without it those of `stream` are asked, and without them the system's.",
        Setter::Custom(Arity::at_least(1), Repeat::Once, |draft, line| {
            draft.resolver = Some(Resolver::from_line(line)?);
            Ok(())
        }),
    ),
    row(
        "resolver_timeout",
        "time",
        "How long a name is waited for; as in `stream` if it is not said.",
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
