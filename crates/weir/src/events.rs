//! `events { … }`: how event loops accept connections.
//!
//! What nginx sets for a worker process applies to an event loop here: there is one worker process,
//! and its loops are what nginx's workers are. Directives that concern nginx's own way to share a
//! socket are accepted without effect.

use std::net::IpAddr;
use std::time::Duration;

use conf::{
    Arity, BlockConfs, Diagnostic, Directive, DirectiveLine, DirectiveTable, EVENTS, RepeatRule,
    Setter,
};

/// The settings of `events`.
#[derive(Clone, Default)]
pub(crate) struct EventsConf {
    /// The maximum number of connections per loop.
    pub(crate) connections: i64,
    /// Accept all pending connections at once.
    pub(crate) multi_accept: bool,
    /// Networks whose clients are logged at debug level, whatever the log's level.
    pub(crate) debug_connections: Vec<(IpAddr, u8)>,
    /// The same for clients of unix sockets.
    pub(crate) debug_unix_connections: bool,
    /// An iteration of a loop that takes longer is logged; zero disables it.
    pub(crate) slow_turn: Duration,
}

impl EventsConf {
    /// Reads the block of `line`.
    pub(crate) fn read(line: &mut DirectiveLine) -> Result<EventsConf, Diagnostic> {
        let mut confs = BlockConfs::new(vec![vec![&DIRECTIVES]]);
        conf::dispatch(
            line.node.block.nodes(),
            &mut confs,
            None,
            &mut line.level.inner_block(EVENTS),
        );
        Ok(confs.get::<EventsConf>().cloned().unwrap_or_default())
    }
}

const fn row(
    name: &'static str,
    syntax: &'static str,
    default: Option<&'static str>,
    doc: &'static str,
    set: Setter<EventsConf>,
) -> Directive<EventsConf> {
    Directive {
        name,
        syntax,
        default,
        contexts: EVENTS,
        since: "0.1",
        doc,
        set,
    }
}

/// The directives of `events`.
pub(crate) static DIRECTIVES: DirectiveTable<EventsConf> = DirectiveTable::new(&[
    row(
        "worker_connections",
        "number",
        Some("512"),
        "The maximum number of open connections per event loop, including upstream connections.",
        Setter::Number(|events| &mut events.connections, 1, i64::MAX),
    ),
    row(
        "multi_accept",
        "on | off",
        Some("off"),
        "Whether an event loop accepts all pending connections at once. `off` accepts a few and then serves its \
         clients.",
        Setter::Flag(|events| &mut events.multi_accept),
    ),
    row(
        "use",
        "method",
        None,
        "The event notification method: only `epoll` is available.",
        Setter::Custom(Arity::ONE, RepeatRule::Once, |_, line| {
            if line.arg(0).is("epoll") {
                return Ok(());
            }
            let error = line.error_at(0, format!("invalid event type \"{}\"", line.text(0)));
            Err(error.note("only \"epoll\" is available on Linux; you can remove this line"))
        }),
    ),
    row(
        "debug_connection",
        "address | CIDR | unix:",
        None,
        "Logs connections of these clients at debug level, regardless of the level of the log.",
        Setter::Custom(Arity::ONE, RepeatRule::Many, set_debug_connection),
    ),
    row(
        "slow_turn",
        "time",
        Some("10ms"),
        "Logs each iteration of an event loop that takes longer than this, with what it was doing; 0 disables it. Weir \
         extension.",
        Setter::Millis(|events| &mut events.slow_turn),
    ),
    row(
        "accept_mutex",
        "on | off",
        None,
        "Accepted for compatibility.",
        Setter::Ignored(Arity::ONE, "the kernel wakes one event loop at a time"),
    ),
    row(
        "accept_mutex_delay",
        "time",
        None,
        "Accepted for compatibility.",
        Setter::Ignored(Arity::ONE, "there is no accept mutex"),
    ),
    row(
        "worker_aio_requests",
        "number",
        None,
        "Accepted for compatibility.",
        Setter::Ignored(
            Arity::ONE,
            "file operations use thread pools, see `thread_pool`",
        ),
    ),
]);

/// `debug_connection`. Without a prefix length a single address is meant.
fn set_debug_connection(
    events: &mut EventsConf,
    line: &mut DirectiveLine,
) -> Result<(), Diagnostic> {
    if line.arg(0).is("unix:") {
        events.debug_unix_connections = true;
        return Ok(());
    }
    // Checks the whole parameter, and warns if bits after the prefix are set.
    line.cidr(0)?;
    let text = line.text(0).to_string();
    let (address, bits) = text.split_once('/').unwrap_or((&text, ""));
    let Some(ip) = conf::address::ip(address.as_bytes()) else {
        return Err(line.invalid_parameter(0));
    };
    let width = if ip.is_ipv4() { 32 } else { 128 };
    events
        .debug_connections
        .push((ip, bits.parse().unwrap_or(width)));
    Ok(())
}
