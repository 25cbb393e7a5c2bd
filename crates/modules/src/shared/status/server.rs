//! The process, its connections, its loops and pools, and the certificates.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use net::counters::{self, AllCounters, CounterTotals, TLS_KINDS};
use net::tls::ServerSettings;
use serde_json::{Value, json};

use super::{StatusView, iso_time};

/// Sums over the loops of this process.
pub(crate) fn totals(view: &StatusView) -> CounterTotals {
    let all = view
        .zones
        .get_or_create(counters::ZONE, AllCounters::default);
    all.totals()
}

/// What the commercial nginx says of itself, but for the address.
pub(crate) fn nginx(view: &StatusView) -> Value {
    json!({
        "version": view.site.identity.version,
        "build": format!("weir-{}", env!("CARGO_PKG_VERSION")),
        "generation": view.observed.loads.load(Relaxed),
        "load_timestamp": iso_time(view.observed.loaded_ms.load(Relaxed)),
        "timestamp": iso_time(rt::wall_millis()),
        "pid": std::process::id(),
        "ppid": host::process::parent_id(),
    })
}

/// Client connections.
pub(crate) fn connections(view: &StatusView) -> Value {
    connections_value(&totals(view))
}

fn connections_value(totals: &CounterTotals) -> Value {
    json!({
        "accepted": totals.accepted,
        "dropped": totals.accepted.saturating_sub(totals.handled),
        "active": totals.active.saturating_sub(totals.waiting),
        "idle": totals.waiting,
    })
}

/// Requests of clients.
pub(crate) fn requests(view: &StatusView) -> Value {
    requests_value(&totals(view))
}

fn requests_value(totals: &CounterTotals) -> Value {
    json!({ "total": totals.requests, "current": totals.reading + totals.writing })
}

/// TLS handshakes of HTTP clients.
pub(crate) fn ssl(view: &StatusView) -> Value {
    let totals = totals(view);
    let resumed = |(_, resumed): &(&str, &str)| *resumed == "yes";
    let reused = TLS_KINDS
        .iter()
        .zip(totals.tls)
        .filter(|(kind, _)| resumed(kind));
    json!({
        "handshakes": totals.tls.iter().sum::<u64>(),
        "handshakes_failed": totals.tls_failed,
        "session_reuses": reused.map(|(_, count)| count).sum::<u64>(),
    })
}

/// The event loops of this process, as what the commercial nginx calls workers.
pub(crate) fn workers(view: &StatusView) -> Value {
    let all = view
        .zones
        .get_or_create(counters::ZONE, AllCounters::default);
    let first = view.zones.first_loop();
    let loops = all.loops().into_iter().enumerate();
    let worker = |(index, counted): (usize, counters::CountedLoop)| {
        let totals = counted.counters.totals();
        json!({
            "id": first + index,
            "pid": std::process::id(),
            "connections": connections_value(&totals),
            "http": { "requests": requests_value(&totals) },
        })
    };
    Value::Array(loops.map(worker).collect())
}

/// When the certificates of servers end, the first one of each server.
pub(crate) fn certificates(view: &StatusView) -> Value {
    let mut ends = BTreeMap::new();
    for server in &view.site.servers {
        let settings = server.tls.as_ref().and_then(|tls| tls.settings.as_ref());
        if let Some(end) = settings.and_then(ServerSettings::certificate_end) {
            let first = ends.entry(server.name.to_string()).or_insert(end);
            *first = end.min(*first);
        }
    }
    let list = ends.into_iter();
    Value::Array(
        list.map(|(server, end)| json!({ "server": server, "expires": end }))
            .collect(),
    )
}
