//! A request at the cache: the keys under which a response to it may be stored, and what is found there.
//!
//! ```text
//! primary key ─┬─ object ─────────────────────────────────────────▶ found
//!              └─ marker (Vary) ── values of the request ── key of the variant ── object
//! ```
//!
//! At every step, completed fills come before the index: they are newer than what it has.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cache::{
    CacheKey, CacheStore, CachedObject, FillFollower, LookupResult, MissReason, ObjectKind,
    StaleReason,
};
use proto::caching;

use super::cached_protocol::CachedProtocol;
use super::cluster_fetch::ClusterPart;
use super::decide::{self, RequestTerms};
use super::stored_head::{
    ACCEPT_LANGUAGE, MarkerHead, StoredHead, values_by_language, variant_values,
};
use crate::request::Request;
use crate::upstream::SettingsRef;

/// How long a request waits for the commit of a completed fill before it asks the origin. A commit takes one write to
/// the log; a second means that the disk is overloaded, and the client must not wait for that.
pub(super) const COMMIT_WAIT: Duration = Duration::from_secs(1);

/// A request at the cache: what is fixed from its first lookup to its answer, and what it has learned since.
#[derive(Clone)]
pub(super) struct CacheRequest {
    pub(super) settings: SettingsRef,
    pub(super) source: &'static CachedProtocol,
    pub(super) store: CacheStore,
    pub(super) primary: CacheKey,
    /// The key of the response to GET, for a HEAD request with a key of its own.
    pub(super) key_of_get: Option<CacheKey>,
    pub(super) terms: RequestTerms,
    pub(super) is_bypassed: bool,
    /// What the cluster has to do with it, once that is known.
    pub(super) cluster: Option<Rc<ClusterPart>>,
    /// It is a member's, and has waited for a fill that waits for a member.
    pub(super) has_awaited_feed: bool,
    /// The marker that a followed fetch turned out to bring. It may not be in the index yet.
    pub(super) known_marker: Option<VaryMarker>,
}

/// The marker under the primary key of a response that varies.
#[derive(Clone)]
pub(super) struct VaryMarker {
    /// The marker's number in the store, which is a part of its variants' keys. A new marker, with other names, thereby
    /// makes the old variants unreachable.
    pub(super) born: u64,
    /// The request fields that select a variant.
    pub(super) names: Vec<Box<[u8]>>,
}

/// Where a response is stored: its key, and the marker above it if it is a variant.
#[derive(Clone)]
pub(super) struct StorageKey {
    pub(super) key: CacheKey,
    pub(super) marker: Option<VaryMarker>,
}

/// What was found, and where.
pub(super) struct CacheEntry {
    pub(super) content: EntryContent,
    pub(super) at: StorageKey,
}

/// What is stored under a key.
pub(super) enum EntryContent {
    /// The store's answer, which may be a miss.
    Stored(LookupResult),
    /// A fill that has received its last byte and is not committed yet.
    Committing(FillFollower),
}

impl EntryContent {
    fn is_miss(&self) -> bool {
        matches!(self, EntryContent::Stored(LookupResult::Miss(..)))
    }
}

impl CacheRequest {
    /// Finds a fresh object in memory. Most requests are hits, and most hits end here, without a future.
    pub(super) fn find_in_memory(
        &self,
        request: &Request,
        now_ms: u64,
    ) -> Option<(CachedObject, Arc<StoredHead>)> {
        let mut found = self.peek(&self.primary, now_ms)?;
        if let LookupResult::Hit(object) = &found
            && object.head().meta.kind == ObjectKind::Variants
        {
            let (key, _) = self.variant_of(request, object)?;
            found = self.peek(&key, now_ms)?;
        }
        self.fresh(found, now_ms)
    }

    /// Looks up a key without waiting; `None` also if a completed fill is newer than what the index has.
    fn peek(&self, key: &CacheKey, now_ms: u64) -> Option<LookupResult> {
        match self.store.completed_fill(key) {
            Some(_) => None,
            None => self.store.lookup_in_memory(key, now_ms),
        }
    }

    /// The stored response to GET, if it may answer HEAD: fresh and complete. Moves the time on if it has to wait.
    pub(super) async fn find_for_head(
        &mut self,
        request: &Request,
        key_of_get: CacheKey,
        now_ms: &mut u64,
    ) -> Option<(CachedObject, Arc<StoredHead>)> {
        // The lookup goes by the primary key, so the keys are exchanged for its duration.
        let key_of_head = std::mem::replace(&mut self.primary, key_of_get);
        let mut found = self.find_entry(request, *now_ms).await;
        if let EntryContent::Committing(_) = found.content {
            // Its last byte is there, so the commit takes no longer than the disk. The origin would be asked twice otherwise.
            let key = &found.at.key;
            let committed = async {
                while self.store.completed_fill(key).is_some() {
                    self.store.flush().await;
                }
            };
            let _ = rt::timeout(COMMIT_WAIT, committed).await;
            *now_ms = rt::wall_millis();
            found = self.find_entry(request, *now_ms).await;
        }
        self.primary = key_of_head;
        match found.content {
            EntryContent::Stored(lookup) => self.fresh(lookup, *now_ms),
            EntryContent::Committing(_) => None,
        }
    }

    /// What was found, if it can be served as it is.
    fn fresh(&self, found: LookupResult, now_ms: u64) -> Option<(CachedObject, Arc<StoredHead>)> {
        let LookupResult::Hit(object) = found else {
            return None;
        };
        let stored = decode_head(&object)?;
        let settings = &self.settings.cache;
        let is_hit = object.is_complete()
            && decide::is_fresh(now_ms, &stored.freshness, &self.terms, settings);
        is_hit.then_some((object, stored))
    }

    /// Looks up the request: under its primary key, and under the key of its variant if there is a marker.
    pub(super) async fn find_entry(&self, request: &Request, now_ms: u64) -> CacheEntry {
        let primary = &self.primary;
        let of_marker = |marker: VaryMarker| StorageKey {
            key: primary.variant_of(
                marker.born,
                &variant_values(&marker.names, &request.head.wire.fields),
            ),
            marker: Some(marker),
        };
        if let Some(marker) = &self.known_marker {
            return self
                .find_variant(request, of_marker(marker.clone()), now_ms)
                .await;
        }
        // Asked before the index, which has this fill from its commit on: in the other order, a commit in between would
        // be missed by both.
        if let Some(follower) = self.store.completed_fill(primary) {
            // Its marker may not be in the index yet, but the head names it.
            return match marker_of(&follower) {
                Some(marker) => self.find_variant(request, of_marker(marker), now_ms).await,
                None => CacheEntry {
                    content: EntryContent::Committing(follower),
                    at: StorageKey {
                        key: primary.clone(),
                        marker: None,
                    },
                },
            };
        }
        let lookup = self.lookup(primary, now_ms).await;
        if let LookupResult::Hit(marker) | LookupResult::Stale(marker, _) = &lookup
            && marker.head().meta.kind == ObjectKind::Variants
            && let Some((key, names)) = self.variant_of(request, marker)
        {
            let born = marker.born();
            let marker = Some(VaryMarker { born, names });
            let at = StorageKey { key, marker };
            let found = self.find_variant(request, at, now_ms).await;
            return match lookup {
                LookupResult::Stale(_, StaleReason::Purged) => self.purged_variant(&lookup, found),
                _ => found,
            };
        }
        CacheEntry {
            content: EntryContent::Stored(lookup),
            at: StorageKey {
                key: primary.clone(),
                marker: None,
            },
        }
    }

    /// What a soft purge of the primary key leaves of a variant: the purge covers all of them, which are not marked
    /// themselves. One that is stored may be validated. The next response begins a new set of variants: in this one, it would
    /// count as purged, too.
    fn purged_variant(&self, marker: &LookupResult, found: CacheEntry) -> CacheEntry {
        let CacheEntry { content, at } = found;
        match content {
            EntryContent::Stored(LookupResult::Hit(object) | LookupResult::Stale(object, _)) => {
                CacheEntry {
                    content: EntryContent::Stored(LookupResult::Stale(object, StaleReason::Purged)),
                    at: StorageKey { marker: None, ..at },
                }
            }
            EntryContent::Stored(LookupResult::Miss(..)) | EntryContent::Committing(_) => {
                let seen = marker.seen_location();
                CacheEntry {
                    content: EntryContent::Stored(LookupResult::Miss(MissReason::Purged, seen)),
                    at: StorageKey {
                        key: self.primary.clone(),
                        marker: None,
                    },
                }
            }
        }
    }

    /// Looks up the variant of a request, by its values and then by its language.
    async fn find_variant(&self, request: &Request, at: StorageKey, now_ms: u64) -> CacheEntry {
        let mut found = self.find_at(at, now_ms).await;
        self.find_by_language(request, &mut found, now_ms).await;
        found
    }

    /// Looks for a variant in the client's preferred language, if no variant was selected by the same `Accept-Language`
    /// value.
    async fn find_by_language(&self, request: &Request, found: &mut CacheEntry, now_ms: u64) {
        let (true, Some(marker)) = (found.content.is_miss(), &found.at.marker) else {
            return;
        };
        let (born, names) = (marker.born, marker.names.clone());
        // Each is one more lookup; their number is bounded where they are parsed.
        for values in self.language_values(request, &names) {
            let names = names.clone();
            let at = StorageKey {
                key: self.primary.variant_of(born, &values),
                marker: Some(VaryMarker { born, names }),
            };
            let other = self.find_at(at, now_ms).await;
            if !other.content.is_miss() {
                *found = other;
                return;
            }
        }
    }

    /// The values of the variants in the languages that a client prefers to all others; none where languages do not count.
    pub(super) fn language_values(&self, request: &Request, names: &[Box<[u8]>]) -> Vec<Vec<u8>> {
        // RFC 9111, section 4.1 lets a cache normalize fields where their meaning is known. It is a directive, because
        // nginx compares the text.
        if !self.settings.cache.language || !names.iter().any(|name| **name == *ACCEPT_LANGUAGE) {
            return Vec::new();
        }
        let fields = &request.head.wire.fields;
        let languages = caching::vary::preferred_languages(fields);
        let values = languages.iter();
        values
            .map(|language| values_by_language(names, fields, language))
            .collect()
    }

    /// Looks up one key.
    async fn find_at(&self, at: StorageKey, now_ms: u64) -> CacheEntry {
        let content = match self.store.completed_fill(&at.key) {
            Some(follower) => EntryContent::Committing(follower),
            None => EntryContent::Stored(self.lookup(&at.key, now_ms).await),
        };
        CacheEntry { content, at }
    }

    /// Looks up one key in the index, and waits for a commit under it that a plain lookup would miss.
    async fn lookup(&self, key: &CacheKey, now_ms: u64) -> LookupResult {
        if self.store.is_committing(key) {
            // What is being committed is a part of a response, or has been purged softly. A part may save fetching the
            // whole, so it is worth a short wait; on timeout the whole is fetched.
            let _ = rt::timeout(COMMIT_WAIT, self.store.wait_for_commit(key)).await;
        }
        self.store.lookup(key, now_ms).await
    }

    /// The key of the variant that answers this request, below a marker.
    fn variant_of(
        &self,
        request: &Request,
        marker: &CachedObject,
    ) -> Option<(CacheKey, Vec<Box<[u8]>>)> {
        let names = MarkerHead::decode(&marker.head().opaque)?.names;
        let values = variant_values(&names, &request.head.wire.fields);
        Some((self.primary.variant_of(marker.born(), &values), names))
    }
}

/// The marker of the variant that a fill brings, according to its head.
fn marker_of(follower: &FillFollower) -> Option<VaryMarker> {
    let head = follower.known_head()?;
    let variant = StoredHead::decode(&head.opaque)?.variant?;
    Some(VaryMarker {
        born: variant.born,
        names: variant.names,
    })
}

/// The stored head of an object. It is decoded once, and kept for as long as the object is in memory.
pub(super) fn decode_head(object: &CachedObject) -> Option<Arc<StoredHead>> {
    let stored = object.attached(|head| StoredHead::decode(&head.opaque).map(Arc::new));
    Option::clone(&stored)
}
