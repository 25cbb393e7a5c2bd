//! Servers, zones, caches, limits and resolvers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::cache::{CacheZone, CacheZones};
use net::resolver::{self, REQUEST_KINDS, RESPONSE_KINDS};
use serde_json::{Map, Value, json};

use super::{StatusView, object, text};
use crate::shared::limit_conn::ConnZones;
use crate::shared::limit_req::ReqZones;
use crate::shared::observation::series::{CacheSums, FROM_STORE, OUTCOMES, REASONS, ServerSums};
use crate::shared::observation::sessions;

/// Responses by class and by status. The first class is of those that were none.
pub(crate) fn responses(classes: &[u64; 6], statuses: &BTreeMap<u16, u64>) -> Value {
    let codes = object(
        statuses
            .iter()
            .map(|(status, count)| (status.to_string(), json!(count))),
    );
    json!({
        "1xx": classes[1], "2xx": classes[2], "3xx": classes[3], "4xx": classes[4], "5xx": classes[5],
        "codes": codes,
        "total": classes[1..].iter().sum::<u64>(),
    })
}

fn handshakes(counts: [u64; 3]) -> Value {
    let [full, resumed, failed] = counts;
    json!({ "handshakes": full + resumed, "session_reuses": resumed, "handshakes_failed": failed })
}

/// What is the same of servers and of locations.
fn sums_value(sums: &ServerSums) -> Value {
    let ended: u64 = sums.responses.iter().sum();
    json!({
        "requests": ended + sums.processing,
        "responses": responses(&sums.responses, &sums.statuses),
        "discarded": sums.responses[0],
        "received": sums.received + sums.heads,
        "sent": sums.sent,
    })
}

fn server_zone(sums: &ServerSums) -> Value {
    let mut value = sums_value(sums);
    value["processing"] = json!(sums.processing);
    value["ssl"] = handshakes(sums.handshakes);
    value
}

/// `status_zone` of servers.
pub(crate) fn server_zones(view: &StatusView) -> Value {
    let zones = view.observed.series.server_zones();
    object(
        zones
            .iter()
            .map(|(name, sums)| (&**name, server_zone(sums))),
    )
}

/// `status_zone` of locations.
pub(crate) fn location_zones(view: &StatusView) -> Value {
    let zones = view.observed.series.location_zones();
    object(zones.iter().map(|(name, sums)| (&**name, sums_value(sums))))
}

/// `status_zone` of stream's servers.
pub(crate) fn stream_zones(view: &StatusView) -> Value {
    let zones = view.observed.sessions.list();
    let zone = |counters: &sessions::SessionCounters| {
        let of = |count: &AtomicU64| count.load(Relaxed);
        let classes = sessions::CLASSES.iter().zip(&counters.sessions);
        let mut sessions = object(classes.map(|(class, count)| (*class, json!(of(count)))));
        sessions["total"] = json!(counters.sessions.iter().map(of).sum::<u64>());
        json!({
            "processing": of(&counters.processing),
            "connections": of(&counters.connections),
            "sessions": sessions,
            "discarded": of(&counters.discarded),
            "received": of(&counters.received),
            "sent": of(&counters.sent),
        })
    };
    object(
        zones
            .iter()
            .map(|(name, counters)| (&**name, zone(counters))),
    )
}

/// All servers and zones, for the page: with histograms of the times until the end of the response.
pub(crate) fn page_servers(view: &StatusView) -> Value {
    let series = &view.observed.series;
    let lists = [
        ("server", series.servers()),
        ("zone", series.server_zones()),
        ("location", series.location_zones()),
    ];
    let mut all = Vec::new();
    for (kind, list) in lists {
        for (name, sums) in list {
            let mut value = server_zone(&sums);
            value["name"] = json!(*name);
            value["kind"] = json!(kind);
            value["cut"] = json!(sums.cut);
            value["times"] = json!(sums.total.counts());
            all.push(value);
        }
    }
    Value::Array(all)
}

/// The caches.
pub(crate) fn caches(view: &StatusView) -> Value {
    let counted: BTreeMap<Arc<str>, CacheSums> =
        view.observed.series.caches().into_iter().collect();
    let zones = view.site.main_confs.get::<CacheZones>().all_zones();
    object(zones.iter().map(|zone| {
        let name = text(zone.name());
        let sums = counted.get(&*name).cloned().unwrap_or_default();
        (name, cache(zone, &sums))
    }))
}

fn cache(zone: &CacheZone, sums: &CacheSums) -> Value {
    let mut value = json!({
        "size": zone.stats().map_or(0, |stats| stats.size),
        // It is ready only with its whole index.
        "cold": zone.stats().is_none(),
    });
    let max_size = zone.parameters().map(|parameters| parameters.max_size);
    if let Some(max_size) = max_size.filter(|size| *size > 0 && *size < u64::MAX) {
        value["max_size"] = json!(max_size);
    }
    for (index, outcome) in OUTCOMES.iter().enumerate() {
        let mut of = json!({ "responses": sums.outcomes[index], "bytes": sums.bytes[index] });
        if !FROM_STORE[index] {
            of["responses_written"] = json!(sums.written[index]);
            of["bytes_written"] = json!(sums.written_bytes[index]);
        }
        value[*outcome] = of;
    }
    value
}

/// What requests of each cache came to and why, for the page.
pub(crate) fn page_caches(view: &StatusView) -> Map<String, Value> {
    let counted = view.observed.series.caches();
    let value = |sums: &CacheSums| {
        let numbers = |names: &[&str], counts: &[u64]| {
            let pairs = names.iter().zip(counts);
            object(pairs.map(|(name, count)| (*name, json!(count))))
        };
        let sent = |from_store: bool| -> u64 {
            let pairs = FROM_STORE.iter().zip(sums.bytes);
            let wanted = pairs.filter(|(stored, _)| **stored == from_store);
            wanted.map(|(_, bytes)| bytes).sum()
        };
        json!({
            "outcomes": numbers(&OUTCOMES, &sums.outcomes),
            "reasons": numbers(&REASONS, &sums.reasons),
            "collapsed": sums.collapsed,
            "sent_from_store": sent(true),
            "sent_from_origin": sent(false),
        })
    };
    counted
        .iter()
        .map(|(name, sums)| (name.to_string(), value(sums)))
        .collect()
}

/// The words for outcomes of `limit_req`, in the order in which they are counted.
const REQ_WORDS: [&str; 5] = [
    "passed",
    "delayed",
    "rejected",
    "delayed_dry_run",
    "rejected_dry_run",
];

/// Those of `limit_conn`.
const CONN_WORDS: [&str; 3] = ["passed", "rejected", "rejected_dry_run"];

fn outcomes(words: &[&'static str], counts: &[AtomicU64]) -> Value {
    let pairs = words.iter().zip(counts);
    object(pairs.map(|(word, count)| (*word, json!(count.load(Relaxed)))))
}

/// Zones of `limit_req`.
pub(crate) fn limit_reqs(view: &StatusView) -> Value {
    let zones = &view.site.main_confs.get::<ReqZones>().0;
    let zones = zones
        .iter()
        .filter_map(|zone| Some((text(zone.name.as_ref()), zone.state()?)));
    object(zones.map(|(name, buckets)| (name, outcomes(&REQ_WORDS, &buckets.outcomes))))
}

/// Zones of `limit_conn` in http.
pub(crate) fn limit_conns(view: &StatusView) -> Value {
    conn_zones(view.site.main_confs.get::<ConnZones>())
}

/// The same in stream.
pub(crate) fn stream_limit_conns(view: &StatusView) -> Value {
    match &view.stream {
        Some(stream) => conn_zones(stream.main_confs.get::<ConnZones>()),
        None => json!({}),
    }
}

fn conn_zones(zones: &ConnZones) -> Value {
    let zones = zones.states();
    object(zones.map(|(name, counters)| (text(name), outcomes(&CONN_WORDS, &counters.outcomes))))
}

/// Resolvers that have a `status_zone`.
pub(crate) fn resolvers(_: &StatusView) -> Value {
    object(resolver::resolver_zones().into_iter().map(|(name, zone)| {
        let mut requests = outcomes(&REQUEST_KINDS, &zone.requests);
        // Nothing here asks for the name of an address.
        requests["addr"] = json!(0);
        let responses = outcomes(&RESPONSE_KINDS, &zone.responses);
        (
            name,
            json!({ "requests": requests, "responses": responses }),
        )
    }))
}

/// Zones that have a size, in pages of 4 KB. There is no allocator with slots as in nginx.
pub(crate) fn slabs(view: &StatusView) -> Value {
    const PAGE: u64 = 4096;
    let mut zones: Vec<(String, u64, u64)> = Vec::new();
    for zone in &view.site.main_confs.get::<ReqZones>().0 {
        if let Some(state) = zone.state() {
            use crate::shared::zones::ZoneState;
            zones.push((text(zone.name.as_ref()), state.size(), state.used()));
        }
    }
    let stream = view.stream.as_ref().map(|site| site.main_confs.get());
    for conns in [Some(view.site.main_confs.get::<ConnZones>()), stream] {
        for (name, state) in conns.into_iter().flat_map(ConnZones::states) {
            use crate::shared::zones::ZoneState;
            zones.push((text(name), state.size(), state.used()));
        }
    }
    for (name, table) in crate::shared::keyval::all_tables(view) {
        use crate::shared::zones::ZoneState;
        zones.push((name, table.size(), table.used()));
    }
    object(zones.into_iter().map(|(name, size, used)| {
        let used = used.div_ceil(PAGE);
        let free = (size / PAGE).saturating_sub(used);
        let pages = json!({ "used": used, "free": free });
        (name, json!({ "pages": pages, "slots": {} }))
    }))
}
