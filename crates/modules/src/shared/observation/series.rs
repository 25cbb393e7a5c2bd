//! Counters of servers, zones and caches: each loop writes its own, a reader adds them up.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use base::sync::Mutex;
use http::Request;
use http::cache::UpstreamCacheStatus;
use http::http_site::{FrozenHttp, HttpSite, ServerId};
use http::log_phase::RequestObserver;
use net::counters::SingleWriterCounter;
use net::metrics::{LatencyHistogram, LatencySums, StatusCounters, micros};

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
// As long as two cache lines, which processors fetch together: what two loops write must not share any. In this order: what
// most requests change is in the first two lines, down to the status that came first.
#[repr(C, align(128))]
pub(crate) struct ServerSeries {
    /// Requests that were counted when they began, and those of them that have ended: the others are under way.
    began: SingleWriterCounter,
    ended: SingleWriterCounter,
    heads: SingleWriterCounter,
    sent: SingleWriterCounter,
    /// Requests that were answered within a turn, for which the clock stood still: they are in the first bound of both
    /// histograms, and add nothing to the sums.
    at_once: SingleWriterCounter,
    received: SingleWriterCounter,
    cut: SingleWriterCounter,
    responses: [SingleWriterCounter; CLASSES.len()],
    statuses: StatusCounters,
    handshakes: [SingleWriterCounter; 3],
    total: LatencyHistogram,
    first_byte: LatencyHistogram,
}

/// The sums of [`ServerSeries`].
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerSums {
    /// By class.
    pub(crate) responses: [u64; CLASSES.len()],
    /// By status; what does not fit is in its class only.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Bytes of content that clients sent.
    pub(crate) received: u64,
    /// Bytes of request lines and header fields.
    pub(crate) heads: u64,
    /// Bytes that clients were sent.
    pub(crate) sent: u64,
    /// Responses that were not sent to their end.
    pub(crate) cut: u64,
    /// Requests under way.
    pub(crate) processing: u64,
    /// TLS handshakes: full ones, resumed ones, failed ones.
    pub(crate) handshakes: [u64; 3],
    /// Until the end of the response.
    pub(crate) total: LatencySums,
    /// Until the head of the response.
    pub(crate) first_byte: LatencySums,
}

impl ServerSums {
    /// Adds those of another zone of the same name.
    pub(crate) fn add(&mut self, other: &ServerSums) {
        for (sum, count) in self.responses.iter_mut().zip(other.responses) {
            *sum += count;
        }
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (sum, count) in self.handshakes.iter_mut().zip(other.handshakes) {
            *sum += count;
        }
        self.received += other.received;
        self.heads += other.heads;
        self.sent += other.sent;
        self.cut += other.cut;
        self.processing += other.processing;
        self.total.add(&other.total);
        self.first_byte.add(&other.first_byte);
    }
}

/// The counters of a cache on one loop.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CacheSeries {
    outcomes: [SingleWriterCounter; OUTCOMES.len()],
    reasons: [SingleWriterCounter; REASONS.len()],
    collapsed: SingleWriterCounter,
    bytes: [SingleWriterCounter; OUTCOMES.len()],
    written: [SingleWriterCounter; OUTCOMES.len()],
    written_bytes: [SingleWriterCounter; OUTCOMES.len()],
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
    /// Bytes of content sent, by outcome.
    pub(crate) bytes: [u64; OUTCOMES.len()],
    /// Responses that were stored on the way, and their bytes, by outcome.
    pub(crate) written: [u64; OUTCOMES.len()],
    /// See `written`.
    pub(crate) written_bytes: [u64; OUTCOMES.len()],
}

/// Which outcomes are answered from the store.
pub(crate) const FROM_STORE: [bool; OUTCOMES.len()] = [true, false, false, false, true, true, true];

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
    /// `status_zone` of servers.
    server_zones: SeriesOfKind<ServerSeries>,
    /// `status_zone` of locations.
    location_zones: SeriesOfKind<ServerSeries>,
    caches: SeriesOfKind<CacheSeries>,
    /// A location has a `status_zone`.
    has_location_zones: AtomicBool,
}

impl SeriesRegistry {
    /// Prepares for a configuration.
    pub(super) fn set_names(&self, site: &FrozenHttp) {
        let indexes = 0..site.servers.len();
        let servers = indexes.map(|index| server_name(site, index)).collect();
        self.servers.set_names(&servers);
        let (mut of_servers, mut of_locations) = (BTreeSet::new(), BTreeSet::new());
        for location in site.all_locations() {
            match location.confs.get::<StatusZone>() {
                StatusZone::None => {}
                StatusZone::Server(name) => drop(of_servers.insert(Arc::clone(name))),
                StatusZone::Location(name) => drop(of_locations.insert(Arc::clone(name))),
            }
        }
        self.has_location_zones
            .store(!of_locations.is_empty(), Relaxed);
        self.server_zones.set_names(&of_servers);
        self.location_zones.set_names(&of_locations);
        let caches = site.main_confs.get::<http::cache::CacheZones>().all_zones();
        let names = caches.iter().map(|cache| cache.name().to_string().into());
        self.caches.set_names(&names.collect());
    }

    /// The sums of each server.
    pub(crate) fn servers(&self) -> Vec<(Arc<str>, ServerSums)> {
        self.servers.sums(ServerSeries::add_to)
    }

    /// The sums of each `status_zone` of servers.
    pub(crate) fn server_zones(&self) -> Vec<(Arc<str>, ServerSums)> {
        self.server_zones.sums(ServerSeries::add_to)
    }

    /// The sums of each `status_zone` of locations.
    pub(crate) fn location_zones(&self) -> Vec<(Arc<str>, ServerSums)> {
        self.location_zones.sums(ServerSeries::add_to)
    }

    /// The sums of each name of a zone, of servers and locations together.
    pub(crate) fn zones(&self) -> Vec<(Arc<str>, ServerSums)> {
        let mut all: BTreeMap<_, _> = self.server_zones().into_iter().collect();
        for (name, sums) in self.location_zones() {
            all.entry(name)
                .or_insert_with(ServerSums::default)
                .add(&sums);
        }
        all.into_iter().collect()
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
        self.statuses.add_to(&mut sums.statuses);
        sums.received += self.received.get();
        sums.heads += self.heads.get();
        // In this order: one that begins meanwhile must not make it negative.
        let ended = self.ended.get();
        sums.processing += self.began.get().saturating_sub(ended);
        for (sum, count) in sums.handshakes.iter_mut().zip(&self.handshakes) {
            *sum += count.get();
        }
        sums.sent += self.sent.get();
        sums.cut += self.cut.get();
        self.total.add_to(&mut sums.total);
        self.first_byte.add_to(&mut sums.first_byte);
        let at_once = self.at_once.get();
        sums.total.add_shortest(at_once);
        sums.first_byte.add_shortest(at_once);
    }

    /// Counts a request that has ended.
    #[inline]
    fn count(&self, ended: &EndedRequest) {
        self.responses[ended.class].add(1);
        if ended.class > 0 {
            self.statuses.count(ended.status);
        }
        if ended.is_counted {
            self.ended.add(1);
        }
        self.heads.add(ended.head);
        if ended.received > 0 {
            self.received.add(ended.received);
        }
        self.sent.add(ended.sent);
        if ended.is_cut {
            self.cut.add(1);
        }
        if ended.total_us == 0 && ended.first_byte_us == Some(0) {
            return self.at_once.add(1);
        }
        self.total.observe_us(ended.total_us);
        if let Some(us) = ended.first_byte_us {
            self.first_byte.observe_us(us);
        }
    }
}

/// What is counted of a request, read once for all that count it.
struct EndedRequest {
    /// The first digit of its status. One that got no response is in no class, whatever status the log has for it: 499, 444.
    class: usize,
    status: u16,
    head: u64,
    received: u64,
    sent: u64,
    is_cut: bool,
    is_counted: bool,
    total_us: u64,
    first_byte_us: Option<u64>,
}

impl EndedRequest {
    #[inline]
    fn of(request: &Request) -> EndedRequest {
        let times = &request.times;
        let status = request.out.status;
        let class = match status {
            100..600 if times.responded.is_some() => usize::from(status / 100),
            _ => 0,
        };
        // Most requests are answered within a turn, in which the clock stands still.
        let first_byte = times
            .responded
            .map(|responded| match responded == times.started {
                true => 0,
                false => micros(responded.saturating_duration_since(times.started)),
            });
        EndedRequest {
            class,
            status,
            head: request.head.wire.size() as u64,
            received: request.body.bytes_taken(),
            sent: times.bytes_sent,
            is_cut: !times.complete,
            is_counted: request.ledger.is_counted,
            total_us: micros(request.ledger.total()),
            first_byte_us: first_byte,
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
        for (sums, counts) in [
            (&mut sums.bytes, &self.bytes),
            (&mut sums.written, &self.written),
            (&mut sums.written_bytes, &self.written_bytes),
        ] {
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count.get();
            }
        }
    }

    fn count(&self, request: &Request, status: UpstreamCacheStatus, reason: &str) {
        let outcome = match status {
            UpstreamCacheStatus::Hit => 0,
            UpstreamCacheStatus::Miss => 1,
            UpstreamCacheStatus::Bypass => 2,
            UpstreamCacheStatus::Expired => 3,
            UpstreamCacheStatus::Stale => 4,
            UpstreamCacheStatus::Updating => 5,
            UpstreamCacheStatus::Revalidated => 6,
        };
        let bytes = request.times.body_bytes_sent;
        self.outcomes[outcome].add(1);
        self.bytes[outcome].add(bytes);
        // The request that began a fill has a reason if the response was not stored; that of `…_cache_bypass` only says
        // why it was not looked for.
        let is_leader = request.ledger.role == Some(http::ledger::FillRole::Leader);
        let has_obstacle =
            !reason.is_empty() && (!reason.starts_with("bypass") || reason.contains(", "));
        if is_leader && !FROM_STORE[outcome] && !has_obstacle {
            self.written[outcome].add(1);
            self.written_bytes[outcome].add(bytes);
        }
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
    by_number: Vec<Option<ServerEntry>>,
    /// By name: those that have had a request.
    servers: OwnSeries<ServerSeries>,
    server_zones: OwnSeries<ServerSeries>,
    location_zones: OwnSeries<ServerSeries>,
    caches: OwnSeries<CacheSeries>,
    has_location_zones: bool,
    /// Faster requests are not among the slowest, in microseconds.
    slow_from_us: u64,
}

/// The counters of a server, and of its `status_zone`.
#[derive(Clone)]
struct ServerEntry {
    server: Arc<ServerSeries>,
    zone: Option<Arc<ServerSeries>>,
}

impl ServerEntry {
    fn each(&self, count: impl Fn(&ServerSeries)) {
        count(&self.server);
        if let Some(zone) = &self.zone {
            count(zone);
        }
    }
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
    fn begin(&mut self, site: &HttpSite) {
        let Some(http) = http::current_loop::http_loop() else {
            return;
        };
        let all = Observation::of(&http.zones);
        self.by_number.clear();
        self.by_number.resize(site.servers.len(), None);
        all.series.servers.keep_known(&mut self.servers);
        all.series.server_zones.keep_known(&mut self.server_zones);
        all.series
            .location_zones
            .keep_known(&mut self.location_zones);
        all.series.caches.keep_known(&mut self.caches);
        self.has_location_zones = all.series.has_location_zones.load(Relaxed);
        self.generation = site.generation;
        self.observation = Some(all);
    }

    /// Finds the counters of a server that has had no request in this generation.
    #[cold]
    fn meet_server(&mut self, site: &HttpSite, number: usize) {
        let name = server_name(site, number);
        let zone = server_zone(site, number);
        if let (Some(all), Some(slot)) = (&self.observation, self.by_number.get_mut(number)) {
            let server = met(&mut self.servers, &all.series.servers, &name).cloned();
            let zone = zone.and_then(|zone| {
                met(&mut self.server_zones, &all.series.server_zones, zone).cloned()
            });
            *slot = server.map(|server| ServerEntry { server, zone });
        }
    }

    /// The counters of a server of a generation: that of this loop, or one that it has left.
    fn entry(&mut self, site: &HttpSite, server: ServerId) -> Option<&ServerEntry> {
        let number = server.0 as usize;
        if site.generation > self.generation {
            self.begin(site);
        }
        if site.generation != self.generation {
            return None;
        }
        if self.by_number.get(number).is_some_and(Option::is_none) {
            self.meet_server(site, number);
        }
        self.by_number.get(number)?.as_ref()
    }

    /// The counters of a server of an earlier generation, which may have another number now, or none.
    #[cold]
    fn former_entry(&self, site: &HttpSite, server: ServerId) -> Option<ServerEntry> {
        let number = server.0 as usize;
        let series = self.servers.get(&server_name(site, number))?;
        let zone = server_zone(site, number).and_then(|zone| self.server_zones.get(zone));
        Some(ServerEntry {
            server: Arc::clone(series),
            zone: zone.cloned(),
        })
    }

    /// Counts a request under all names that it has: its server's, those of its zones, and that of the cache it asked.
    fn count(&mut self, request: &Request) {
        let site = &request.site;
        let ended = EndedRequest::of(request);
        match self.entry(site, request.server) {
            Some(entry) => entry.each(|series| series.count(&ended)),
            None => {
                if let Some(entry) = self.former_entry(site, request.server) {
                    entry.each(|series| series.count(&ended));
                }
            }
        }
        let Some(all) = &self.observation else { return };
        if self.has_location_zones
            && let StatusZone::Location(name) = site.location(request.location).confs.get()
            && let Some(series) = met(&mut self.location_zones, &all.series.location_zones, name)
        {
            series.count(&ended);
        }
        if let Some(record) = request.upstream.get()
            && let (Some(status), Some(zone)) = (record.cache, &request.ledger.cache)
            && let Ok(name) = std::str::from_utf8(zone.name())
            && let Some(series) = met(&mut self.caches, &all.series.caches, name)
        {
            series.count(request, status, &record.cache_reason);
        }
        if ended.total_us >= self.slow_from_us {
            self.slow_from_us = all.slowest.offer(request, request.ledger.total());
        }
    }
}

/// The `status_zone` of a server.
fn server_zone(site: &HttpSite, number: usize) -> Option<&str> {
    let root = site.servers.get(number)?.root;
    match site.location(root).confs.get::<StatusZone>() {
        StatusZone::Server(name) => Some(name),
        StatusZone::None | StatusZone::Location(_) => None,
    }
}

/// What the loops call.
pub(super) static OBSERVER: RequestObserver = RequestObserver {
    began: |request| {
        SERIES.with_borrow_mut(|series| {
            let entry = series.entry(&request.site, request.server);
            if let Some(entry) = entry {
                entry.each(|series| series.began.add(1));
            }
            entry.is_some()
        })
    },
    ended: |request| SERIES.with_borrow_mut(|series| series.count(request)),
    handshake: |site, server, end| {
        SERIES.with_borrow_mut(|series| {
            if let Some(entry) = series.entry(site, server) {
                entry.each(|series| series.handshakes[end as usize].add(1));
            }
        });
    },
};

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
