//! What is remembered of requests that have ended, for metrics and status pages: one registry that all of them read.
//!
//! - [`series`]: counters and histograms of each server, `status_zone` and cache. Every loop has its own, so that no two
//!   processors contend for them; readers add them up.
//! - [`sessions`]: the same of stream's servers, which are all in one place: a session is rarer than a request.
//! - [`slowest`]: the slowest requests of the last minutes, with their ledgers.
//!
//! Nothing is remembered unless a configuration asks for it: a loop looks at one word after each request.

pub(crate) mod series;
pub(crate) mod sessions;
pub(crate) mod slowest;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use base::sync::Mutex;
use host::engine::ZoneRegistry;
use http::http_loop::HttpLoop;
use http::http_site::FrozenHttp;

use ::stream::stream_site::FrozenStream;
use series::SeriesRegistry;
use sessions::SessionSeries;
use slowest::SlowestRequests;

/// The name under which [`Observation`] is kept over reloads.
const ZONE: &str = "observation";

/// The name of a server or location in metrics: `status_zone`. A location inherits that of a location around it, and not that
/// of its server, which counts all of its requests in any case.
#[derive(Clone, Debug, Default)]
pub(crate) enum StatusZone {
    /// It has none.
    #[default]
    None,
    /// The name of a server's.
    Server(Arc<str>),
    /// The name of a location's.
    Location(Arc<str>),
}

/// What this process remembers.
#[derive(Default)]
pub(crate) struct Observation {
    /// The counters.
    pub(crate) series: SeriesRegistry,
    /// The slowest requests.
    pub(crate) slowest: SlowestRequests,
    /// The current configuration has a page that shows this.
    wanted: AtomicBool,
    /// The configuration that is served, for questions from other worker groups.
    site: Mutex<Weak<FrozenHttp>>,
    /// That of stream.
    stream: Mutex<Weak<FrozenStream>>,
    /// The zones of stream's servers.
    pub(crate) sessions: SessionSeries,
    /// The generation for which it was asked.
    generation: AtomicU64,
    /// How many configurations have been loaded, and when the last one was, in milliseconds since 1970.
    pub(crate) loads: AtomicU64,
    pub(crate) loaded_ms: AtomicU64,
}

impl Observation {
    /// The configuration that is served.
    pub(crate) fn site(&self) -> Option<Arc<FrozenHttp>> {
        self.site.lock().upgrade()
    }

    /// The configuration of stream that is served.
    pub(crate) fn stream(&self) -> Option<Arc<FrozenStream>> {
        self.stream.lock().upgrade()
    }

    /// Sets it.
    pub(crate) fn set_stream(&self, site: &Arc<FrozenStream>) {
        *self.stream.lock() = Arc::downgrade(site);
    }

    /// That of a process.
    pub(crate) fn of(zones: &ZoneRegistry) -> Arc<Observation> {
        zones.get_or_create(ZONE, Observation::default)
    }
}

/// A module says, for each configuration that is committed, whether it has a page in it.
pub(crate) fn commit(site: &FrozenHttp, zones: &ZoneRegistry, has_page: bool) {
    let all = Observation::of(zones);
    let former = all.generation.swap(site.generation, Relaxed);
    if former != site.generation {
        all.wanted.store(has_page, Relaxed);
        all.loads.fetch_add(1, Relaxed);
        all.loaded_ms.store(rt::wall_millis(), Relaxed);
    } else if has_page {
        all.wanted.store(true, Relaxed);
    }
    let wanted = all.wanted.load(Relaxed);
    net::metrics::set_wanted(wanted);
    host::error_log::keep_recent_errors(wanted);
    if wanted {
        all.series.set_names(site);
    }
}

/// Has a loop remember its requests, if the configuration that it begins to serve asks for that.
pub(crate) fn start(http: &HttpLoop) {
    let all = Observation::of(&http.zones);
    *all.site.lock() = Arc::downgrade(&http.site().shared());
    let observer = all.wanted.load(Relaxed).then_some(&series::OBSERVER);
    http::log_phase::set_observer(observer);
}
