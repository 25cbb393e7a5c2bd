//! The ledger as variables.

use std::time::Duration;

use base::text::write_seconds;
use conf::Variable;

use super::report::{accept_time, tls_time};
use super::{CacheTier, ConnectionUse, FillRole, LedgerPhase, LedgerReport};
use crate::request::Request;

/// The variables `$weir_…`. They are volatile, because columns grow until the response has been sent.
pub static VARIABLES: &[Variable<Request>] = &[
    Variable::new(
        "weir_ledger",
        |request: &mut Request, out| {
            LedgerReport::of_request(request).write_field(out);
            true
        },
        "Where the time of the request went: the termination code, the total, and every column that is not empty, in \
         milliseconds, separated by slashes.",
    )
    .volatile(),
    Variable::new(
        "weir_termination",
        |request: &mut Request, out| {
            out.extend_from_slice(&request.ledger.termination());
            true
        },
        "Who ended the request and in which phase, in two letters; `--` if the response was sent as it was meant to be.",
    )
    .volatile(),
    Variable::new(
        "weir_fill_role",
        |request: &mut Request, out| word(request.ledger.role.map(FillRole::word), out),
        "`leader` if the request started a fill of the cache, `follower` if it waited for another one's.",
    )
    .volatile(),
    Variable::new(
        "weir_cache_tier",
        |request: &mut Request, out| word(request.ledger.tier.map(CacheTier::word), out),
        "Where the cache had the response: `memory`, `disk` or `fill`.",
    )
    .volatile(),
    Variable::new(
        "weir_upstream_connection",
        |request: &mut Request, out| word(request.ledger.connection.map(ConnectionUse::word), out),
        "`reused` if an idle connection to the upstream server was taken, `new` if one was made.",
    )
    .volatile(),
    Variable::new(
        "weir_time_total",
        |request: &mut Request, out| time(Some(request.ledger.total()), out),
        "The time from the first byte of the request until its response had been sent, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_accept",
        |request: &mut Request, out| time(accept_time(request), out),
        "The time from accepting the connection to the first byte of its first request, without TLS, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_tls",
        |request: &mut Request, out| time(tls_time(request), out),
        "The time of the connection's TLS handshake, for its first request, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_head",
        |request: &mut Request, out| column(request, LedgerPhase::Head, out),
        "The time in which the request's head came in parts, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_loop",
        |request: &mut Request, out| column(request, LedgerPhase::Loop, out),
        "The time for which the event loop was busy with others while the request could have gone on, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_upload",
        |request: &mut Request, out| column(request, LedgerPhase::Upload, out),
        "The time spent waiting for the client's content, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_limit",
        |request: &mut Request, out| column(request, LedgerPhase::Limit, out),
        "The delay by `limit_req` and `limit_rate`, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_auth",
        |request: &mut Request, out| column(request, LedgerPhase::Auth, out),
        "The time that access checks waited: `auth_request`, passwords, `auth_delay`, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_lookup",
        |request: &mut Request, out| column(request, LedgerPhase::Lookup, out),
        "The time that the cache took to look the response up, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_fill",
        |request: &mut Request, out| column(request, LedgerPhase::Fill, out),
        "The time spent waiting for another request's fill of the cache, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_disk",
        |request: &mut Request, out| column(request, LedgerPhase::Disk, out),
        "The time spent waiting for a disk, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_resolve",
        |request: &mut Request, out| column(request, LedgerPhase::Resolve, out),
        "The time spent resolving the name of an upstream server, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_queue",
        |request: &mut Request, out| column(request, LedgerPhase::Queue, out),
        "The time spent waiting for an upstream server with a free place, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_connect",
        |request: &mut Request, out| column(request, LedgerPhase::Connect, out),
        "The time spent connecting to upstream servers, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_upstream_tls",
        |request: &mut Request, out| column(request, LedgerPhase::UpstreamTls, out),
        "The time of TLS handshakes with upstream servers, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_first_byte",
        |request: &mut Request, out| column(request, LedgerPhase::FirstByte, out),
        "The time from the connection to an upstream server until its response began, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_member",
        |request: &mut Request, out| column(request, LedgerPhase::Member, out),
        "The time until another member of the cluster answered, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_body",
        |request: &mut Request, out| column(request, LedgerPhase::Body, out),
        "The time spent waiting for content from the upstream server, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_script",
        |request: &mut Request, out| column(request, LedgerPhase::Script, out),
        "The time in which scripts ran and waited, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_client",
        |request: &mut Request, out| column(request, LedgerPhase::Client, out),
        "The time for which the client did not take what was sent, in seconds.",
    )
    .volatile(),
    Variable::new(
        "weir_time_work",
        |request: &mut Request, out| column(request, LedgerPhase::Work, out),
        "The time that is in no other column, in seconds.",
    )
    .volatile(),
];

/// Appends a word, if there is one.
fn word(word: Option<&'static str>, out: &mut Vec<u8>) -> bool {
    word.is_some_and(|word| {
        out.extend_from_slice(word.as_bytes());
        true
    })
}

/// Appends a time in seconds, if there is one.
fn time(time: Option<Duration>, out: &mut Vec<u8>) -> bool {
    time.is_some_and(|time| {
        write_seconds(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), out);
        true
    })
}

/// Appends a column; a phase that did not happen has no value.
fn column(request: &Request, phase: LedgerPhase, out: &mut Vec<u8>) -> bool {
    let spent = request.ledger.spent_in(phase);
    time((!spent.is_zero()).then_some(spent), out)
}
