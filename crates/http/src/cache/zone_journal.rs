//! The journal of purges of a cache: which cluster keeps it, and how it is applied to the store.
//!
//! A zone has a journal if a line with `cluster=` names it and the block of that cluster has a `redis` line. The journal
//! itself, and what a reader believes of it, is `net::cluster`.

use std::sync::{Arc, OnceLock};

use base::sync::Mutex;
use bstr::{BStr, BString};
use cache::{CacheStore, PurgeMode, PurgeRequest};
use conf::{Diagnostic, DirectiveLine};
use net::cluster::{Cluster, JournalTarget, KeptAnswer, PurgeJournal};

use super::zone::{CacheZone, CacheZones};

/// The cluster of a zone, and the journal that it keeps for it.
#[derive(Default)]
pub(super) struct ZoneCluster {
    /// Set when a line names both.
    cluster: OnceLock<Arc<Cluster>>,
    /// Found at the first use, since the cluster has no state before the worker commits to the configuration.
    journal: OnceLock<Arc<PurgeJournal>>,
}

/// Where the purges of a store go, besides the store. It changes with the configuration, and the store stays.
pub(super) type JournalLink = Arc<Mutex<Option<(Arc<Cluster>, BString)>>>;

impl ZoneCluster {
    /// The journal; `None` if the zone has none.
    #[inline]
    pub(super) fn journal(&self, zone: &BStr) -> Option<&Arc<PurgeJournal>> {
        let cluster = self.cluster.get()?;
        let state = cluster.state().filter(|_| cluster.redis().is_some())?;
        Some(self.journal.get_or_init(|| state.journal_of(zone)))
    }

    /// The cluster, if it keeps a journal for the zone.
    fn keeper(&self) -> Option<&Arc<Cluster>> {
        let cluster = self.cluster.get()?;
        let has_redis = cluster
            .settings()
            .is_some_and(|settings| settings.redis.is_some());
        has_redis.then_some(cluster)
    }
}

/// Writes a purge of a store into its journal, if it has one.
pub(super) fn tell_journal(link: &JournalLink, purge: Vec<u8>) {
    let Some((cluster, zone)) = link.lock().clone() else {
        return;
    };
    if let Some(state) = cluster.state() {
        state.journal_of(zone.as_ref()).append_soon(purge);
    }
}

impl CacheZone {
    /// The journal of purges; `None` if there is none.
    pub fn journal(&self) -> Option<&Arc<PurgeJournal>> {
        self.cluster.journal(self.name())
    }

    /// The cluster that keeps the journal.
    pub fn journal_keeper(&self) -> Option<&Arc<Cluster>> {
        self.cluster.keeper()
    }

    /// The link for the store of this zone.
    pub(super) fn journal_link(&self) -> Option<(Arc<Cluster>, BString)> {
        Some((Arc::clone(self.cluster.keeper()?), self.name().to_owned()))
    }

    /// Hides what is stored if the process was stopped, and what was purged meanwhile is not known yet.
    #[inline]
    pub(super) fn hide_if_stopped(&self, store: &CacheStore) {
        let Some(journal) = self.journal() else {
            return;
        };
        let now_ms = rt::monotonic_millis();
        if journal.was_stopped(now_ms) {
            journal.note_hidden(now_ms);
            store.hide_stored();
        }
    }
}

impl CacheZones {
    /// Notes that a line names this zone and this cluster.
    pub fn join_cluster(
        line: &DirectiveLine,
        zone: &CacheZone,
        cluster: &Arc<Cluster>,
    ) -> Result<(), Diagnostic> {
        let known = zone.cluster.cluster.get_or_init(|| Arc::clone(cluster));
        match known.name() == cluster.name() {
            true => Ok(()),
            false => Err(line
                .error(format!(
                    "cache \"{}\" is shared with cluster \"{}\" already",
                    zone.name(),
                    known.name()
                ))
                .note("purges of a cache are told to one cluster: give each cluster a cache of its own")),
        }
    }
}

/// The store of a zone, as its journal sees it.
pub struct JournaledZone(pub Arc<CacheZone>);

impl JournaledZone {
    fn with_store(&self, action: impl FnOnce(&CacheStore)) {
        // Without a store there is nothing to purge. One that is opened later reads on at its own position.
        if let Some(store) = self.0.open_store() {
            action(&store);
        }
    }
}

impl JournalTarget for JournaledZone {
    fn is_open(&self) -> bool {
        self.0.open_store().is_some()
    }

    fn kept_position(&self) -> Option<Vec<u8>> {
        self.0.open_store()?.note()
    }

    fn claimed_position(&self) -> Option<Vec<u8>> {
        self.0.open_store()?.claimed_note()
    }

    fn keep_position(&self, position: Vec<u8>) {
        self.with_store(|store| store.keep_note(position));
    }

    fn claim_position(&self, position: Vec<u8>, then: KeptAnswer) {
        self.with_store(|store| store.claim_note(position, then));
    }

    fn purge(&self, purge: &[u8]) {
        self.with_store(|store| store.take_purge(purge));
    }

    fn purge_all(&self, is_dropped: bool) {
        let mode = match is_dropped {
            true => PurgeMode::Hard,
            false => PurgeMode::Soft,
        };
        self.with_store(|store| store.purge(PurgeRequest::All, mode));
    }

    fn hide_stored(&self) {
        self.with_store(CacheStore::hide_stored);
    }

    fn show_stored(&self) {
        self.with_store(CacheStore::show_stored);
    }
}
