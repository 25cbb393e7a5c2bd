//! Counters of stream's servers that have a `status_zone`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::sync::Mutex;

/// Classes of the statuses that sessions end with, in the order of [`SessionCounters::sessions`].
pub(crate) const CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];

/// The counters of a zone. Several loops write them: a session costs far more than that.
#[derive(Debug, Default)]
pub(crate) struct SessionCounters {
    /// Sessions under way.
    pub(crate) processing: AtomicU64,
    /// Sessions that began.
    pub(crate) connections: AtomicU64,
    /// Sessions that ended, by [`CLASSES`].
    pub(crate) sessions: [AtomicU64; CLASSES.len()],
    /// Sessions that ended without a status.
    pub(crate) discarded: AtomicU64,
    /// Bytes from clients.
    pub(crate) received: AtomicU64,
    /// Bytes to clients.
    pub(crate) sent: AtomicU64,
}

/// The zones by name.
#[derive(Default)]
pub(crate) struct SessionSeries(Mutex<BTreeMap<Arc<str>, Arc<SessionCounters>>>);

impl SessionSeries {
    /// Sets the names of the current configuration. Counters of others are dropped.
    pub(crate) fn set_names(&self, names: &BTreeSet<Arc<str>>) {
        let mut all = self.0.lock();
        all.retain(|name, _| names.contains(name));
        for name in names {
            all.entry(Arc::clone(name)).or_default();
        }
    }

    /// The counters of a zone, if the configuration has it.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<SessionCounters>> {
        self.0.lock().get(name).cloned()
    }

    /// All zones.
    pub(crate) fn list(&self) -> Vec<(Arc<str>, Arc<SessionCounters>)> {
        let all = self.0.lock();
        all.iter()
            .map(|(name, counters)| (Arc::clone(name), Arc::clone(counters)))
            .collect()
    }
}

/// A session that is counted, until it is dropped.
pub(crate) struct CountedSession(pub(crate) Arc<SessionCounters>);

impl CountedSession {
    /// Counts a session that begins.
    pub(crate) fn begin(counters: Arc<SessionCounters>) -> CountedSession {
        counters.processing.fetch_add(1, Relaxed);
        counters.connections.fetch_add(1, Relaxed);
        CountedSession(counters)
    }

    /// Counts its end.
    pub(crate) fn end(&self, status: u16, received: u64, sent: u64) {
        let counters = &self.0;
        match status {
            200..300 => &counters.sessions[0],
            400..500 => &counters.sessions[1],
            500..600 => &counters.sessions[2],
            _ => &counters.discarded,
        }
        .fetch_add(1, Relaxed);
        counters.received.fetch_add(received, Relaxed);
        counters.sent.fetch_add(sent, Relaxed);
    }
}

impl Drop for CountedSession {
    fn drop(&mut self) {
        self.0.processing.fetch_sub(1, Relaxed);
    }
}
