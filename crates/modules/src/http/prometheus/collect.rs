//! The families of the server as a whole: connections, requests, loops, pools, caches, configuration. Those of modules
//! come from the modules.
//!
//! Names follow Prometheus: the unit last, in base units (seconds, bytes), and `_total` of counters added by the format.
//! A family is told once, with the samples of all servers together: both formats demand that lines of a family are not
//! interrupted, and a scrape that breaks the rule is refused as a whole.
//!
//! A sample that is 0 is told as well. A counter that only appears when it first counts hides its first increase from
//! `rate()`, and an alert on it never fires.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use host::engine::ZoneRegistry;
use http::HttpModule;
use http::cache::CacheZones;
use http::http_site::FrozenHttp;
use net::counters::{self, AllCounters, TLS_KINDS};
use net::metrics::{HistogramTotals, MetricFamily, MetricSink};
use net::resolver;
use net::tls::ServerSettings;

use crate::shared::observation::series::{
    CLASSES, CacheSums, FROM_STORE, OUTCOMES, REASONS, ServerSums,
};
use crate::shared::observation::{Observation, sessions};

type Family = MetricFamily;

/// A family, and the number that a pool has for it.
type PoolNumber = (&'static Family, fn(&rt::pool::PoolStats) -> u64);

/// A family, and the number that a cache's store has for it.
type StoreNumber = (&'static Family, fn(&http::cache::StoreStats) -> u64);

static BUILD: Family = Family::gauge(
    "weir_build_info",
    "The version of the server; the value is 1.",
);
static GENERATION: Family = Family::gauge(
    "weir_config_generation",
    "The number of the configuration that is served.",
);
// A time stamp, not an age: Prometheus subtracts it from its own clock, and an alert can say that a file was changed and
// not loaded.
static LOADED: Family = Family::gauge(
    "weir_config_loaded_timestamp_seconds",
    "When the configuration that is served was loaded.",
);
static LOADS: Family = Family::counter(
    "weir_config_loads",
    "Configurations that have been loaded since the worker process began.",
);
static ACCEPTED: Family = Family::counter("weir_connections_accepted", "Connections accepted.");
static HANDLED: Family = Family::counter(
    "weir_connections_handled",
    "Connections served; fewer than accepted if worker_connections was reached.",
);
static CONNECTIONS: Family = Family::gauge(
    "weir_connections",
    "Open connections, by what they do: reading a head, writing a response, waiting for a request.",
);
static REQUESTS: Family = Family::counter("weir_requests", "Requests begun.");
static TLS: Family = Family::counter(
    "weir_tls_handshakes",
    "TLS handshakes of HTTP clients, by version and whether a session was resumed.",
);
// Port scans that close before their hello are not failures.
static TLS_FAILED: Family = Family::counter(
    "weir_tls_handshakes_failed",
    "TLS handshakes of HTTP clients that failed.",
);

/// Tells everything. It runs on a thread of the pool, where locks that loops hold for a moment may be waited for.
pub(super) fn collect_all(
    site: &FrozenHttp,
    zones: &ZoneRegistry,
    modules: &[&HttpModule],
    sink: &mut dyn MetricSink,
) {
    let observed = Observation::of(zones);
    sink.family(&BUILD);
    sink.count(&[("version", env!("CARGO_PKG_VERSION").as_bytes())], 1);
    sink.family(&GENERATION);
    sink.count(&[], site.generation);
    sink.family(&LOADED);
    let loaded = Duration::from_millis(observed.loaded_ms.load(Relaxed));
    sink.seconds(&[], loaded);
    sink.family(&LOADS);
    sink.count(&[], observed.loads.load(Relaxed));
    connections(zones, sink);
    certificates(site, sink);
    let servers = [
        ("server", observed.series.servers()),
        ("zone", observed.series.zones()),
    ];
    requests(&servers, sink);
    loops(zones, sink);
    pools(sink);
    caches(site, &observed.series.caches(), sink);
    sessions(&observed, sink);
    resolvers(sink);
    for module in modules {
        (module.metrics)(site, sink);
    }
}

/// Connections and handshakes: sums over the loops, those included that a reload has removed, so that no counter falls.
fn connections(zones: &ZoneRegistry, sink: &mut dyn MetricSink) {
    let totals = zones
        .get_or_create(counters::ZONE, AllCounters::default)
        .totals();
    sink.family(&ACCEPTED);
    sink.count(&[], totals.accepted);
    sink.family(&HANDLED);
    sink.count(&[], totals.handled);
    sink.family(&CONNECTIONS);
    for (state, count) in [
        ("reading", totals.reading),
        ("writing", totals.writing),
        ("waiting", totals.waiting),
    ] {
        sink.count(&[("state", state.as_bytes())], count);
    }
    sink.family(&REQUESTS);
    sink.count(&[], totals.requests);
    sink.family(&TLS);
    for ((version, resumed), count) in TLS_KINDS.iter().zip(totals.tls) {
        let labels = [
            ("version", version.as_bytes()),
            ("resumed", resumed.as_bytes()),
        ];
        sink.count(&labels, count);
    }
    sink.family(&TLS_FAILED);
    sink.count(&[], totals.tls_failed);
}

// A time stamp for the reason of the one above: "expires in less than a week" is the alert's business.
static CERTIFICATES: Family = Family::gauge(
    "weir_tls_certificate_expiry_timestamp_seconds",
    "When the first certificate of a server expires.",
);

/// The ends of the servers' certificates. Servers of the same name are one: the first end counts.
fn certificates(site: &FrozenHttp, sink: &mut dyn MetricSink) {
    let mut ends = BTreeMap::new();
    for server in &site.servers {
        let settings = server.tls.as_ref().and_then(|tls| tls.settings.as_ref());
        if let Some(end) = settings.and_then(ServerSettings::certificate_end) {
            let first = ends.entry(&server.name).or_insert(end);
            *first = end.min(*first);
        }
    }
    sink.family(&CERTIFICATES);
    for (name, end) in ends {
        sink.count(&[("server", name)], end);
    }
}

// Classes and not statuses: five series for each server, however many statuses an application makes up.
static RESPONSES: Family = Family::counter(
    "weir_http_responses",
    "Responses by the class of their status, of each server and status_zone.",
);
static PROCESSING: Family = Family::gauge(
    "weir_http_requests_in_progress",
    "Requests that are being served.",
);
static RECEIVED: Family = Family::counter(
    "weir_http_received_bytes",
    "Bytes of content that clients sent.",
);
static SENT: Family = Family::counter("weir_http_sent_bytes", "Bytes that clients were sent.");
// The one number here that a server without errors in its statuses may still fail by: clients that left, upstream servers
// that broke off, timeouts. The termination code in the log says which.
static CUT: Family = Family::counter(
    "weir_http_responses_cut",
    "Responses that were not sent to their end, or not at all.",
);
static DURATION: Family = Family::histogram(
    "weir_http_request_duration_seconds",
    "From the first byte of a request to the end of its response.",
);
static FIRST_BYTE: Family = Family::histogram(
    "weir_http_first_byte_seconds",
    "From the first byte of a request to the head of its response.",
);

/// The counters of servers and of zones, under the label of their kind.
type LabelledSums = (&'static str, Vec<(Arc<str>, ServerSums)>);

/// Tells a family's samples of one server or zone: its name, the label for it, its counters.
type ToldSums<'f> = dyn Fn(&mut dyn MetricSink, &[u8], &'static str, &ServerSums) + 'f;

/// Requests of servers and zones. Both have the same families, told apart by the label: a sum over `server` counts each
/// request once, and zones may overlap.
fn requests(all: &[LabelledSums], sink: &mut dyn MetricSink) {
    // All samples of a family come together, so the lists are gone through once for each.
    let each = |sink: &mut dyn MetricSink, f: &ToldSums| {
        for (label, list) in all {
            for (name, sums) in list {
                f(sink, name.as_bytes(), label, sums);
            }
        }
    };
    sink.family(&RESPONSES);
    each(sink, &|sink, name, label, sums| {
        for (class, count) in CLASSES.iter().zip(sums.responses) {
            sink.count(&[(label, name), ("class", class.as_bytes())], count);
        }
    });
    sink.family(&PROCESSING);
    each(sink, &|sink, name, label, sums| {
        sink.count(&[(label, name)], sums.processing)
    });
    sink.family(&RECEIVED);
    each(sink, &|sink, name, label, sums| {
        sink.count(&[(label, name)], sums.received)
    });
    sink.family(&SENT);
    each(sink, &|sink, name, label, sums| {
        sink.count(&[(label, name)], sums.sent)
    });
    sink.family(&CUT);
    each(sink, &|sink, name, label, sums| {
        sink.count(&[(label, name)], sums.cut)
    });
    sink.family(&DURATION);
    each(sink, &|sink, name, label, sums| {
        sink.histogram(&[(label, name)], &sums.total.totals());
    });
    sink.family(&FIRST_BYTE);
    each(sink, &|sink, name, label, sums| {
        sink.histogram(&[(label, name)], &sums.first_byte.totals());
    });
}

// The share of its time that a loop is busy is the load of the server: unlike the processor's, it counts what the loop
// waits for by mistake, too.
static LOOP_BUSY: Family = Family::counter(
    "weir_loop_busy_seconds",
    "Time that event loops worked instead of waiting.",
);
// A loop that is stuck cannot say so; these are read from outside, while it is.
static LOOP_LATE: Family = Family::gauge(
    "weir_loop_turn_age_seconds",
    "How long the present turn of an event loop has lasted; a loop that is blocked shows here.",
);
static LOOP_TASKS: Family = Family::gauge("weir_loop_tasks", "Tasks of an event loop.");
static LOOP_SLOW: Family = Family::counter(
    "weir_loop_slow_turns",
    "Turns of an event loop that were reported as slow.",
);
static LOOP_PANICS: Family = Family::counter("weir_loop_panics", "Tasks that ended by a panic.");
static LOOP_TURNS: Family = Family::histogram(
    "weir_loop_turn_seconds",
    "How long turns of event loops took.",
);

/// The bounds of turn times: powers of two, in microseconds, as `rt` counts them.
const TURN_BOUNDS: [&str; rt::stats::TURN_BUCKETS - 1] = [
    "1e-06", "2e-06", "4e-06", "8e-06", "1.6e-05", "3.2e-05", "6.4e-05", "0.000128", "0.000256",
    "0.000512", "0.001024", "0.002048", "0.004096", "0.008192", "0.016384", "0.032768", "0.065536",
    "0.131072", "0.262144", "0.524288", "1.048576", "2.097152", "4.194304",
];

/// Event loops. The age of the present turn is the one number here that a blocked loop cannot tell itself: it is asked from
/// outside, so that an alert can say which loop stands still while it does.
fn loops(zones: &ZoneRegistry, sink: &mut dyn MetricSink) {
    let all = zones
        .get_or_create(counters::ZONE, AllCounters::default)
        .loops();
    let first = zones.first_loop();
    let loops: Vec<_> = all
        .iter()
        .enumerate()
        .filter_map(|(index, counted)| {
            let handle = counted.handle.as_ref()?;
            let name = (first + index).to_string();
            Some((name, handle.stats(), handle.turn_duration()))
        })
        .collect();
    sink.family(&LOOP_BUSY);
    for (name, stats, _) in &loops {
        sink.seconds(&[("loop", name.as_bytes())], stats.busy);
    }
    sink.family(&LOOP_LATE);
    for (name, _, late) in &loops {
        sink.seconds(&[("loop", name.as_bytes())], *late);
    }
    sink.family(&LOOP_TASKS);
    for (name, stats, _) in &loops {
        sink.count(&[("loop", name.as_bytes())], stats.tasks);
    }
    sink.family(&LOOP_SLOW);
    for (name, stats, _) in &loops {
        sink.count(&[("loop", name.as_bytes())], stats.slow_turns);
    }
    sink.family(&LOOP_PANICS);
    for (name, stats, _) in &loops {
        sink.count(&[("loop", name.as_bytes())], stats.panics);
    }
    sink.family(&LOOP_TURNS);
    for (name, stats, _) in &loops {
        let histogram = HistogramTotals {
            bounds: &TURN_BOUNDS,
            counts: &stats.turn_times,
            sum: stats.busy,
        };
        sink.histogram(&[("loop", name.as_bytes())], &histogram);
    }
}

// A pool whose queue grows is one whose device cannot keep up, or whose threads are too few: the wait tells which.
static POOL_THREADS: Family = Family::gauge("weir_pool_threads", "Threads of a pool.");
static POOL_RUNNING: Family = Family::gauge("weir_pool_running", "Jobs of a pool that run.");
static POOL_QUEUED: Family = Family::gauge("weir_pool_queued", "Jobs of a pool that are queued.");
static POOL_WAITING: Family = Family::gauge(
    "weir_pool_waiting",
    "Jobs that wait for a place in the queue of a pool.",
);
static POOL_DONE: Family = Family::counter("weir_pool_done", "Jobs that a pool has done.");
static POOL_WAIT: Family = Family::counter(
    "weir_pool_wait_seconds",
    "Time that jobs of a pool have waited for a thread.",
);

/// Thread pools. A wait that grows while few jobs run is a pool that is too small; one with all threads running is a slow
/// disk.
fn pools(sink: &mut dyn MetricSink) {
    let pools = rt::pool::all();
    let pools: Vec<_> = pools
        .iter()
        .map(|pool| (pool.name(), pool.stats()))
        .collect();
    let gauges: [PoolNumber; 5] = [
        (&POOL_THREADS, |stats| stats.threads as u64),
        (&POOL_RUNNING, |stats| stats.running as u64),
        (&POOL_QUEUED, |stats| stats.queued as u64),
        (&POOL_WAITING, |stats| stats.waiting as u64),
        (&POOL_DONE, |stats| stats.done),
    ];
    for (family, value) in gauges {
        sink.family(family);
        for (name, stats) in &pools {
            sink.count(&[("pool", name.as_bytes())], value(stats));
        }
    }
    sink.family(&POOL_WAIT);
    for (name, stats) in &pools {
        sink.seconds(&[("pool", name.as_bytes())], stats.waited);
    }
}

static CACHE_REQUESTS: Family = Family::counter(
    "weir_cache_requests",
    "Requests that a cache was asked for, by what it did.",
);
// The list of reasons is fixed, and ends with one for all others: a reason with the line of a directive in it would be a
// new series for each line of a configuration.
static CACHE_REASONS: Family = Family::counter(
    "weir_cache_unstored",
    "Requests for which a cache did less than it could, by the reason.",
);
static CACHE_COLLAPSED: Family = Family::counter(
    "weir_cache_collapsed",
    "Requests that followed another one's fill.",
);
static CACHE_BYTES: Family = Family::counter(
    "weir_cache_sent_bytes",
    "Bytes of content that clients were sent, from the store or from the origin.",
);
static CACHE_SIZE: Family =
    Family::gauge("weir_cache_size_bytes", "Bytes that a cache has stored.");
static CACHE_OBJECTS: Family =
    Family::gauge("weir_cache_objects", "Objects that a cache has stored.");
static CACHE_MEMORY: Family = Family::gauge(
    "weir_cache_memory_bytes",
    "Bytes of the objects that a cache has in memory.",
);
static CACHE_FILLS: Family = Family::gauge("weir_cache_fills", "Fills of a cache under way.");
static CACHE_STORED: Family =
    Family::counter("weir_cache_stored", "Objects that a cache has stored.");
static CACHE_WRITTEN: Family = Family::counter(
    "weir_cache_written_bytes",
    "Bytes that a cache has written.",
);
static CACHE_EVICTED: Family = Family::counter(
    "weir_cache_evicted",
    "Objects that a cache has dropped to make room.",
);
static CACHE_MEMORY_HITS: Family = Family::counter(
    "weir_cache_memory_hits",
    "Hits that a cache has answered from memory.",
);

/// Caches: what requests came to, which the loops have counted, and what the stores hold, which they know themselves.
fn caches(site: &FrozenHttp, counted: &[(Arc<str>, CacheSums)], sink: &mut dyn MetricSink) {
    sink.family(&CACHE_REQUESTS);
    for (name, sums) in counted {
        for (outcome, count) in OUTCOMES.iter().zip(sums.outcomes) {
            let labels = [("cache", name.as_bytes()), ("outcome", outcome.as_bytes())];
            sink.count(&labels, count);
        }
    }
    sink.family(&CACHE_REASONS);
    for (name, sums) in counted {
        for (reason, count) in REASONS.iter().zip(sums.reasons) {
            let labels = [("cache", name.as_bytes()), ("reason", reason.as_bytes())];
            sink.count(&labels, count);
        }
    }
    sink.family(&CACHE_COLLAPSED);
    for (name, sums) in counted {
        sink.count(&[("cache", name.as_bytes())], sums.collapsed);
    }
    sink.family(&CACHE_BYTES);
    for (name, sums) in counted {
        let mut bytes = [0; 2];
        for (from_store, count) in FROM_STORE.iter().zip(sums.bytes) {
            bytes[usize::from(!from_store)] += count;
        }
        for (from, bytes) in ["store", "origin"].iter().zip(bytes) {
            let labels = [("cache", name.as_bytes()), ("from", from.as_bytes())];
            sink.count(&labels, bytes);
        }
    }
    let stores = site.main_confs.get::<CacheZones>().all_zones();
    let stores: Vec<_> = stores
        .iter()
        .filter_map(|cache| Some((cache.name().to_string(), cache.stats()?)))
        .collect();
    let numbers: [StoreNumber; 8] = [
        (&CACHE_SIZE, |stats| stats.size),
        (&CACHE_OBJECTS, |stats| stats.objects as u64),
        (&CACHE_MEMORY, |stats| stats.memory as u64),
        (&CACHE_FILLS, |stats| stats.fills as u64),
        (&CACHE_STORED, |stats| stats.stored),
        (&CACHE_WRITTEN, |stats| stats.written),
        (&CACHE_EVICTED, |stats| stats.evicted),
        (&CACHE_MEMORY_HITS, |stats| stats.memory_hits),
    ];
    for (family, value) in numbers {
        sink.family(family);
        for (name, stats) in &stores {
            sink.count(&[("cache", name.as_bytes())], value(stats));
        }
    }
}

static SESSIONS: Family = Family::counter(
    "weir_stream_sessions",
    "Sessions of a status_zone of stream, by the class of the status that they ended with.",
);
static SESSIONS_NOW: Family = Family::gauge(
    "weir_stream_sessions_in_progress",
    "Sessions of a status_zone of stream that are being served.",
);
static SESSION_BYTES: Family = Family::counter(
    "weir_stream_bytes",
    "Bytes of sessions of a status_zone of stream: received from clients, and sent to them.",
);

/// Servers of stream that have a `status_zone`.
fn sessions(observed: &Observation, sink: &mut dyn MetricSink) {
    let zones = observed.sessions.list();
    sink.family(&SESSIONS);
    for (name, counters) in &zones {
        for (class, count) in sessions::CLASSES.iter().zip(&counters.sessions) {
            let labels = [("zone", name.as_bytes()), ("class", class.as_bytes())];
            sink.count(&labels, count.load(Relaxed));
        }
    }
    sink.family(&SESSIONS_NOW);
    for (name, counters) in &zones {
        sink.count(
            &[("zone", name.as_bytes())],
            counters.processing.load(Relaxed),
        );
    }
    sink.family(&SESSION_BYTES);
    for (name, counters) in &zones {
        for (way, count) in [("received", &counters.received), ("sent", &counters.sent)] {
            let labels = [("zone", name.as_bytes()), ("direction", way.as_bytes())];
            sink.count(&labels, count.load(Relaxed));
        }
    }
}

static LOOKUPS: Family = Family::counter(
    "weir_resolver_requests",
    "Questions that a resolver with a status_zone has asked, by what was asked for.",
);
static ANSWERS: Family = Family::counter(
    "weir_resolver_responses",
    "How the questions of a resolver with a status_zone ended.",
);

/// Resolvers that have a `status_zone`.
fn resolvers(sink: &mut dyn MetricSink) {
    let zones = resolver::resolver_zones();
    sink.family(&LOOKUPS);
    for (name, counters) in &zones {
        for (kind, count) in resolver::REQUEST_KINDS.iter().zip(&counters.requests) {
            let labels = [("zone", name.as_bytes()), ("kind", kind.as_bytes())];
            sink.count(&labels, count.load(Relaxed));
        }
    }
    sink.family(&ANSWERS);
    for (name, counters) in &zones {
        for (end, count) in resolver::RESPONSE_KINDS.iter().zip(&counters.responses) {
            let labels = [("zone", name.as_bytes()), ("response", end.as_bytes())];
            sink.count(&labels, count.load(Relaxed));
        }
    }
}
