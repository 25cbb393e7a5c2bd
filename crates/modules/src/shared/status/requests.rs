//! Servers, zones, caches, limits and resolvers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::cache::{CacheZone, CacheZones, ZoneParameters};
use net::resolver::{self, REQUEST_KINDS, RESPONSE_KINDS};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{StatusView, object, text, tree};
use crate::shared::limit_conn::ConnZones;
use crate::shared::limit_req::ReqZones;
use crate::shared::observation::series::{CacheSums, FROM_STORE, OUTCOMES, REASONS, ServerSums};
use crate::shared::observation::sessions;

/// Responses by class and by status. The first class is of those that were none.
#[derive(Serialize)]
pub(crate) struct ResponseCounts<'a> {
    #[serde(rename = "1xx")]
    class_1: u64,
    #[serde(rename = "2xx")]
    class_2: u64,
    #[serde(rename = "3xx")]
    class_3: u64,
    #[serde(rename = "4xx")]
    class_4: u64,
    #[serde(rename = "5xx")]
    class_5: u64,
    codes: &'a BTreeMap<u16, u64>,
    total: u64,
}

impl<'a> ResponseCounts<'a> {
    /// The counts of these classes and statuses.
    pub(crate) fn of(classes: &[u64; 6], statuses: &'a BTreeMap<u16, u64>) -> ResponseCounts<'a> {
        let [_, class_1, class_2, class_3, class_4, class_5] = *classes;
        ResponseCounts {
            class_1,
            class_2,
            class_3,
            class_4,
            class_5,
            codes: statuses,
            total: class_1 + class_2 + class_3 + class_4 + class_5,
        }
    }

    /// From 2xx to 5xx.
    pub(crate) fn classes(&self) -> [u64; 4] {
        [self.class_2, self.class_3, self.class_4, self.class_5]
    }
}

#[derive(Serialize)]
struct HandshakeCounts {
    handshakes: u64,
    session_reuses: u64,
    handshakes_failed: u64,
}

/// A server or zone, in the words of the API. What a location does not have is left out.
#[derive(Serialize)]
pub(crate) struct ZoneCounts<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) processing: Option<u64>,
    pub(crate) requests: u64,
    pub(crate) responses: ResponseCounts<'a>,
    discarded: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ssl: Option<HandshakeCounts>,
}

impl<'a> ZoneCounts<'a> {
    fn of_location(sums: &'a ServerSums) -> ZoneCounts<'a> {
        let ended: u64 = sums.responses.iter().sum();
        ZoneCounts {
            processing: None,
            requests: ended + sums.processing,
            responses: ResponseCounts::of(&sums.responses, &sums.statuses),
            discarded: sums.responses[0],
            received: sums.received + sums.heads,
            sent: sums.sent,
            ssl: None,
        }
    }

    fn of_server(sums: &'a ServerSums) -> ZoneCounts<'a> {
        let [full, resumed, failed] = sums.handshakes;
        ZoneCounts {
            processing: Some(sums.processing),
            ssl: Some(HandshakeCounts {
                handshakes: full + resumed,
                session_reuses: resumed,
                handshakes_failed: failed,
            }),
            ..ZoneCounts::of_location(sums)
        }
    }
}

/// `status_zone` of servers.
pub(crate) fn server_zones(view: &StatusView) -> Value {
    let zones = view.observed.series.server_zones();
    let zones = zones.iter();
    object(zones.map(|(name, sums)| (&**name, tree(&ZoneCounts::of_server(sums)))))
}

/// `status_zone` of locations.
pub(crate) fn location_zones(view: &StatusView) -> Value {
    let zones = view.observed.series.location_zones();
    let zones = zones.iter();
    object(zones.map(|(name, sums)| (&**name, tree(&ZoneCounts::of_location(sums)))))
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

/// A server or zone, as the page has it.
#[derive(Serialize)]
pub(crate) struct ServerRow<'a> {
    pub(crate) kind: &'static str,
    pub(crate) name: &'a str,
    #[serde(flatten)]
    pub(crate) counts: ZoneCounts<'a>,
    pub(crate) cut: u64,
    /// A histogram of the times until the end of the response.
    times: &'a [u64],
}

/// Shows all servers and zones to `show`.
pub(crate) fn each_server(view: &StatusView, mut show: impl FnMut(&ServerRow<'_>)) {
    let series = &view.observed.series;
    let lists = [
        ("server", series.servers()),
        ("zone", series.server_zones()),
        ("location", series.location_zones()),
    ];
    for (kind, list) in &lists {
        for (name, sums) in list {
            show(&ServerRow {
                kind,
                name,
                counts: ZoneCounts::of_server(sums),
                cut: sums.cut,
                times: sums.total.counts(),
            });
        }
    }
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
    if let Some(max_size) = max_size.filter(|size| *size < ZoneParameters::UNLIMITED_SIZE) {
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
