//! Counters of servers, zones and caches: each loop writes its own, a reader adds them up.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use base::sync::Mutex;
use http::Request;
use http::cache::UpstreamCacheStatus;
use http::http_site::FrozenHttp;
use net::counters::SingleWriterCounter;
use net::metrics::{LatencyHistogram, LatencySums};

use super::{Observation, StatusZone};

/// Classes of statuses: 1xx to 5xx, and what was answered with none.
pub(crate) const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// What a cache did, in the order of [`CacheSeries::outcomes`].
pub(crate) const OUTCOMES: [&str; 7] = [
    "hit",
    "miss",
    "bypass",
    "expired",
    "stale",
    "updating",
    "revalidated",
];

/// Why a cache did less than it could: those rules that are counted apart, and all others.
pub(crate) const REASONS: [&str; 10] = [
    "set-cookie",
    "no freshness",
    "authorization",
    "private",
    "no-store",
    "vary",
    "uncacheable remembered",
    "disk full",
    "no_cache",
    "other",
];

/// The counters of a server or `status_zone` on one loop.
#[derive(Debug, Default)]
// As long as two cache lines, which processors fetch together: what two loops write must not share any.
#[repr(align(128))]
pub(crate) struct ServerSeries {
    responses: [SingleWriterCounter; CLASSES.len()],
    received: SingleWriterCounter,
    sent: SingleWriterCounter,
    cut: SingleWriterCounter,
    total: LatencyHistogram,
    first_byte: LatencyHistogram,
}

/// The sums of [`ServerSeries`].
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerSums {
    /// By class.
    pub(crate) responses: [u64; CLASSES.len()],
    /// Bytes of content that clients sent.
    pub(crate) received: u64,
    /// Bytes that clients were sent.
    pub(crate) sent: u64,
    /// Responses that were not sent to their end.
    pub(crate) cut: u64,
    /// Until the end of the response.
    pub(crate) total: LatencySums,
    /// Until the head of the response.
    pub(crate) first_byte: LatencySums,
}

/// The counters of a cache on one loop.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CacheSeries {
    outcomes: [SingleWriterCounter; OUTCOMES.len()],
    reasons: [SingleWriterCounter; REASONS.len()],
    collapsed: SingleWriterCounter,
    bytes: [SingleWriterCounter; 2],
}

/// The sums of [`CacheSeries`].
#[derive(Clone, Debug, Default)]
pub(crate) struct CacheSums {
    /// By outcome.
    pub(crate) outcomes: [u64; OUTCOMES.len()],
    /// By reason.
    pub(crate) reasons: [u64; REASONS.len()],
    /// Requests that followed another one's fill.
    pub(crate) collapsed: u64,
    /// Bytes sent from the store, and from the origin.
    pub(crate) bytes: [u64; 2],
}

/// Counters of one name: those of each loop that counted under it.
pub(crate) struct NamedSeries<S>(Mutex<Vec<Arc<S>>>);

impl<S> Default for NamedSeries<S> {
    fn default() -> Self {
        NamedSeries(Mutex::default())
    }
}

/// All counters by name.
pub(crate) struct SeriesOfKind<S>(Mutex<BTreeMap<Arc<str>, NamedSeries<S>>>);

impl<S> Default for SeriesOfKind<S> {
    fn default() -> Self {
        SeriesOfKind(Mutex::default())
    }
}

impl<S: Default> SeriesOfKind<S> {
    /// Drops those of a loop whose name the configuration has lost, and which would count in vain.
    fn keep_known(&self, own: &mut OwnSeries<S>) {
        let all = self.0.lock();
        own.retain(|name, part| {
            let parts = all.get(name).map(|parts| parts.0.lock());
            parts.is_some_and(|parts| parts.iter().any(|known| Arc::ptr_eq(known, part)))
        });
    }

    /// New counters of a loop under a name; `None` if no configuration has the name.
    fn part(&self, name: &str) -> Option<Arc<S>> {
        let all = self.0.lock();
        let part = Arc::<S>::default();
        all.get(name)?.0.lock().push(Arc::clone(&part));
        Some(part)
    }

    /// Sets the names of the current configuration. Counters of others are dropped.
    fn set_names(&self, names: &BTreeSet<Arc<str>>) {
        let mut all = self.0.lock();
        all.retain(|name, _| names.contains(name));
        for name in names {
            all.entry(Arc::clone(name)).or_default();
        }
    }

    /// Adds up what each name has.
    fn sums<T: Default>(&self, add: fn(&S, &mut T)) -> Vec<(Arc<str>, T)> {
        let all = self.0.lock();
        let sum = |(name, series): (&Arc<str>, &NamedSeries<S>)| {
            let mut sums = T::default();
            for part in series.0.lock().iter() {
                add(part, &mut sums);
            }
            (Arc::clone(name), sums)
        };
        all.iter().map(sum).collect()
    }
}

/// All counters.
#[derive(Default)]
pub(crate) struct SeriesRegistry {
    servers: SeriesOfKind<ServerSeries>,
    zones: SeriesOfKind<ServerSeries>,
    caches: SeriesOfKind<CacheSeries>,
    /// The configuration has a `status_zone`.
    has_zones: AtomicBool,
}

impl SeriesRegistry {
    /// Prepares for a configuration.
    pub(super) fn set_names(&self, site: &FrozenHttp) {
        let indexes = 0..site.servers.len();
        let servers = indexes.map(|index| server_name(site, index)).collect();
        self.servers.set_names(&servers);
        let zones = site.all_locations();
        let zones = zones.filter_map(|location| location.confs.get::<StatusZone>().0.clone());
        let zones: BTreeSet<_> = zones.collect();
        self.has_zones.store(!zones.is_empty(), Relaxed);
        self.zones.set_names(&zones);
        let caches = site.main_confs.get::<http::cache::CacheZones>().all_zones();
        let names = caches.iter().map(|cache| cache.name().to_string().into());
        self.caches.set_names(&names.collect());
    }

    /// The sums of each server.
    pub(crate) fn servers(&self) -> Vec<(Arc<str>, ServerSums)> {
        self.servers.sums(ServerSeries::add_to)
    }

    /// The sums of each `status_zone`.
    pub(crate) fn zones(&self) -> Vec<(Arc<str>, ServerSums)> {
        self.zones.sums(ServerSeries::add_to)
    }

    /// The sums of each cache.
    pub(crate) fn caches(&self) -> Vec<(Arc<str>, CacheSums)> {
        self.caches.sums(CacheSeries::add_to)
    }
}

/// The name of a server in metrics: its first one, or `_`. Servers of the same name are one.
fn server_name(site: &FrozenHttp, index: usize) -> Arc<str> {
    match site
        .servers
        .get(index)
        .map(|server| server.name.to_string())
    {
        Some(name) if !name.is_empty() => name.into(),
        _ => "_".into(),
    }
}

impl ServerSeries {
    fn add_to(&self, sums: &mut ServerSums) {
        for (sum, count) in sums.responses.iter_mut().zip(&self.responses) {
            *sum += count.get();
        }
        sums.received += self.received.get();
        sums.sent += self.sent.get();
        sums.cut += self.cut.get();
        self.total.add_to(&mut sums.total);
        self.first_byte.add_to(&mut sums.first_byte);
    }

    /// Counts a request that has ended. It is called for requests that got no response at all as well: a status of 0, or
    /// one of the server's own such as 499, is in the class that its first digit says, or in none.
    fn count(&self, request: &Request) {
        let class = match request.out.status {
            status @ 100..600 => usize::from(status / 100),
            _ => 0,
        };
        self.responses[class].add(1);
        let received = request.body.bytes_taken();
        if received > 0 {
            self.received.add(received);
        }
        self.sent.add(request.times.bytes_sent);
        if !request.times.complete {
            self.cut.add(1);
        }
        self.total.observe(request.ledger.total());
        if let Some(responded) = request.times.responded {
            let began = request.times.started;
            self.first_byte
                .observe(responded.saturating_duration_since(began));
        }
    }
}

impl CacheSeries {
    fn add_to(&self, sums: &mut CacheSums) {
        for (sum, count) in sums.outcomes.iter_mut().zip(&self.outcomes) {
            *sum += count.get();
        }
        for (sum, count) in sums.reasons.iter_mut().zip(&self.reasons) {
            *sum += count.get();
        }
        sums.collapsed += self.collapsed.get();
        for (sum, count) in sums.bytes.iter_mut().zip(&self.bytes) {
            *sum += count.get();
        }
    }

    fn count(&self, request: &Request, status: UpstreamCacheStatus, reason: &str) {
        let (outcome, is_stored) = match status {
            UpstreamCacheStatus::Hit => (0, true),
            UpstreamCacheStatus::Miss => (1, false),
            UpstreamCacheStatus::Bypass => (2, false),
            UpstreamCacheStatus::Expired => (3, false),
            UpstreamCacheStatus::Stale => (4, true),
            UpstreamCacheStatus::Updating => (5, true),
            UpstreamCacheStatus::Revalidated => (6, true),
        };
        self.outcomes[outcome].add(1);
        self.bytes[usize::from(!is_stored)].add(request.times.body_bytes_sent);
        if request.ledger.role == Some(http::ledger::FillRole::Follower) {
            self.collapsed.add(1);
        }
        // The text may name several rules. The first one in the list counts: the more specific are in front.
        if !reason.is_empty() {
            let other = REASONS.len() - 1;
            let known = REASONS.iter().position(|known| reason.contains(known));
            self.reasons[known.unwrap_or(other)].add(1);
        }
    }
}

/// The counters of this loop.
#[derive(Default)]
struct LoopSeries {
    /// The newest generation that a request has ended under.
    generation: u64,
    observation: Option<Arc<Observation>>,
    /// By the number of the server in that generation; those that have had a request.
    by_number: Vec<Option<Arc<ServerSeries>>>,
    /// By name: those that have had a request.
    servers: OwnSeries<ServerSeries>,
    zones: OwnSeries<ServerSeries>,
    caches: OwnSeries<CacheSeries>,
    has_zones: bool,
    /// Faster requests are not among the slowest, in microseconds.
    slow_from_us: u64,
}

/// What one loop counts with, by name.
type OwnSeries<S> = BTreeMap<Arc<str>, Arc<S>>;

rt::local! {
    static SERIES: RefCell<LoopSeries> = RefCell::default();
}

/// The counters of a loop under a name that a request has met.
fn met<'a, S: Default>(
    own: &'a mut OwnSeries<S>,
    all: &SeriesOfKind<S>,
    name: &str,
) -> Option<&'a Arc<S>> {
    if !own.contains_key(name) {
        own.insert(name.into(), all.part(name)?);
    }
    own.get(name)
}

impl LoopSeries {
    /// Begins a generation. It costs what the loop has met, not what the configuration has: there may be ten thousand servers.
    #[cold]
    fn begin(&mut self, request: &Request) {
        let Some(http) = http::current_loop::http_loop() else {
            return;
        };
        let all = Observation::of(&http.zones);
        self.by_number.clear();
        self.by_number.resize(request.site.servers.len(), None);
        all.series.servers.keep_known(&mut self.servers);
        all.series.zones.keep_known(&mut self.zones);
        all.series.caches.keep_known(&mut self.caches);
        self.has_zones = all.series.has_zones.load(Relaxed);
        self.generation = request.site.generation;
        self.observation = Some(all);
    }

    /// Finds the counters of a server that has had no request in this generation.
    #[cold]
    fn meet_server(&mut self, request: &Request) {
        let number = request.server.0 as usize;
        let name = server_name(&request.site, number);
        if let (Some(all), Some(slot)) = (&self.observation, self.by_number.get_mut(number)) {
            *slot = met(&mut self.servers, &all.series.servers, &name).cloned();
        }
    }

    /// Counts a request under all names that it has: its server's, those of its zones, and that of the cache it asked.
    fn count(&mut self, request: &Request) {
        let generation = request.site.generation;
        if generation > self.generation {
            self.begin(request);
        }
        let number = request.server.0 as usize;
        if generation == self.generation && self.by_number.get(number).is_some_and(Option::is_none)
        {
            self.meet_server(request);
        }
        let series = match generation == self.generation {
            true => self.by_number.get(number).and_then(Option::as_ref),
            // It began before a reload, and its server may have another number now, or none.
            false => self.servers.get(&server_name(&request.site, number)),
        };
        if let Some(series) = series {
            series.count(request);
        }
        let Some(all) = &self.observation else { return };
        let server = request.site.server(request.server);
        let locations = [server.root, request.location];
        // A request that ends at the server's own level is in one location, not in two.
        let zones = if server.root == request.location {
            1
        } else {
            2
        };
        for location in locations
            .iter()
            .take(if self.has_zones { zones } else { 0 })
        {
            let zone = request.site.location(*location).confs.get::<StatusZone>();
            let name = zone.0.as_deref();
            if let Some(series) =
                name.and_then(|name| met(&mut self.zones, &all.series.zones, name))
            {
                series.count(request);
            }
        }
        if let Some(record) = request.upstream.get()
            && let (Some(status), Some(zone)) = (record.cache, &request.ledger.cache)
            && let Ok(name) = std::str::from_utf8(zone.name())
            && let Some(series) = met(&mut self.caches, &all.series.caches, name)
        {
            series.count(request, status, &record.cache_reason);
        }
        let took = request.ledger.total();
        if took.as_micros() as u64 >= self.slow_from_us {
            self.slow_from_us = all.slowest.offer(request, took);
        }
    }
}

/// Remembers a request that has ended.
pub(super) fn observe_request(request: &Request) {
    SERIES.with_borrow_mut(|series| series.count(request));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_add_up_and_names_go() {
        let series = SeriesOfKind::<CacheSeries>::default();
        let names = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
        series.set_names(&names(&["a", "b"]));
        let mut own = OwnSeries::new();
        for count in [2, 3] {
            let part = series.part("a").expect("the name is known");
            part.collapsed.add(count);
            own.insert("a".into(), part);
        }
        assert!(series.part("unknown").is_none());
        let sums = series.sums(CacheSeries::add_to);
        let sums: Vec<_> = sums
            .iter()
            .map(|(name, sums)| (&**name, sums.collapsed))
            .collect();
        assert_eq!(sums, [("a", 5), ("b", 0)]);
        series.keep_known(&mut own);
        assert_eq!(own.len(), 1);
        series.set_names(&names(&["b"]));
        assert_eq!(series.sums(CacheSeries::add_to).len(), 1);
        // A name that was gone for a while has new counters.
        series.set_names(&names(&["a", "b"]));
        series.keep_known(&mut own);
        assert!(own.is_empty());
    }
}
