//! The caches of a configuration: `…_cache_path`, and the stores behind it.
//!
//! A configuration declares its caches. When the worker commits to the configuration, it opens their stores on a thread
//! of the pool and keeps them by path, so that a reload finds them open. If a store cannot be opened, or fails later,
//! requests are served without it, the error log says why, and opening is tried again.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base::Lru;
use base::sync::{Condvar, Mutex, MutexGuard};
use bstr::{BStr, BString};
use conf::{Diagnostic, DirectiveLine, Span};
use host::engine::ZoneRegistry;
use host::worker_group::{GroupMember, WorkerGroup};
use rt::pool::DeviceNumber;

use super::zone_journal::{JournalLink, ZoneCluster, tell_journal};

/// How long a start or a reload waits for a store to open: requests before that would all go to the origin. A store on
/// a slower disk opens while requests are being served.
const OPEN_WAIT: Duration = Duration::from_secs(1);

/// The interval between attempts to open a store.
const RETRY: Duration = Duration::from_secs(10);

/// The same if the worker's user lacks permission: the master is about to change the owner of the directory.
const RETRY_DENIED: Duration = Duration::from_secs(2);

/// The same while another process holds the store's lock: usually that process is about to exit.
const RETRY_LOCKED: Duration = Duration::from_millis(50);

/// How long another process may hold the lock before the error log mentions it.
const LOCKED_PATIENCE: Duration = Duration::from_secs(2);

/// The interval of the stores' upkeep.
pub const UPKEEP: Duration = Duration::from_secs(2);

/// The number of keys per cache whose uses are counted for `min_uses`. The least recently used count is dropped for a
/// new key, so that a scan of random keys cannot exhaust memory.
const COUNTED_KEYS: usize = 32 * 1024;

/// A `…_cache_path` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneParameters {
    /// The directory.
    pub path: PathBuf,
    /// The size of `keys_zone` in bytes, which bounds the number of objects.
    pub keys: u64,
    /// An object that is not requested for this time is removed; zero: never.
    pub inactive: Duration,
    /// The maximum number of bytes on disk; [`ZoneParameters::UNLIMITED_SIZE`] without `max_size=`.
    pub max_size: u64,
    /// Bytes of the file system to leave free; 0: no bound.
    pub min_free: u64,
    /// The maximum number of bytes of small objects in memory.
    pub memory: u64,
}

/// The beginning of the names of directories for further worker groups.
const GROUP_FOLDER: &str = "group-";

/// How many purges of other groups wait while a store is being opened; with more, everything is purged.
const MAX_MISSED: usize = 1024;

/// The topic of purges between worker groups.
const PURGES: &str = "purge";

/// The number of bytes of `keys_zone` that one object counts as. The index takes less.
const BYTES_PER_KEY: u64 = 40;

impl ZoneParameters {
    /// The `max_size` of a cache without one, in bytes: in effect no limit.
    pub const UNLIMITED_SIZE: u64 = 1 << 50;

    /// The parameters of one worker group: two processes cannot write one store, so each has its own, the first one the
    /// directory itself, and its part of the sizes.
    fn of_group(&self, group: WorkerGroup) -> ZoneParameters {
        let mut own = self.clone();
        if group.index > 0 {
            own.path.push(format!("{GROUP_FOLDER}{}", group.index));
        }
        own.keys = group.part_of(self.keys);
        if self.max_size < Self::UNLIMITED_SIZE {
            own.max_size = group.part_of(self.max_size);
        }
        own.memory = group.part_of(self.memory);
        own
    }

    fn options(&self) -> cache::StoreOptions {
        let mut options = cache::StoreOptions::new(&self.path, rt::pool::default_pool());
        options.max_size = self.max_size;
        options.min_free = self.min_free;
        options.inactive_ms = u64::try_from(self.inactive.as_millis()).unwrap_or(u64::MAX);
        options.memory = usize::try_from(self.memory).unwrap_or(usize::MAX);
        options.max_objects = (self.keys / BYTES_PER_KEY).max(1);
        options
    }
}

/// A cache, known by the name of its zone.
pub struct CacheZone {
    name: BString,
    /// The declaration, with the place of its line for messages.
    declared: OnceLock<(ZoneParameters, String)>,
    /// Set when the worker commits to the configuration: a configuration that is only tested opens no store.
    opened: OnceLock<Arc<ZoneStore>>,
    /// The first line that refers to it, and its directive, for the message that no line declares it.
    referred: Option<(Span, String)>,
    /// Whom purges are told.
    pub(super) cluster: ZoneCluster,
}

/// The caches of a configuration. Clones share the map.
#[derive(Clone, Default)]
pub struct CacheZones(Arc<Mutex<BTreeMap<BString, Arc<CacheZone>>>>);

impl fmt::Debug for CacheZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheZone")
            .field("name", &self.name)
            .finish()
    }
}

impl CacheZone {
    /// The name of the zone.
    pub fn name(&self) -> &BStr {
        self.name.as_ref()
    }

    /// The directory; empty if it was never declared, and then the configuration is not accepted.
    pub fn path(&self) -> &Path {
        self.declared
            .get()
            .map_or(Path::new(""), |(declared, _)| declared.path.as_path())
    }

    /// The declaration.
    pub fn parameters(&self) -> Option<&ZoneParameters> {
        self.declared.get().map(|(declared, _)| declared)
    }

    /// The store, if it can be used at the moment. If not, another attempt to open it is made.
    pub fn store(&self) -> Option<cache::CacheStore> {
        let opened = self.opened.get()?;
        let store = opened.store();
        match &store {
            Some(store) => self.hide_if_stopped(store),
            None => Arc::clone(opened).open_soon(),
        }
        store
    }

    /// The store, if it is open.
    pub(super) fn open_store(&self) -> Option<cache::CacheStore> {
        self.opened.get()?.store()
    }

    /// What is wrong with the store, for the error log and the status page.
    pub fn last_error(&self) -> Option<String> {
        self.opened.get()?.last_error()
    }

    /// The store's figures, if it is open.
    pub fn stats(&self) -> Option<cache::StoreStats> {
        self.store().map(|store| store.stats())
    }

    /// What the store contained when it was opened.
    pub fn found_at_open(&self) -> Option<OpenedStore> {
        self.opened.get()?.state().found
    }

    /// Counts a request for a key, and returns the number of requests so far.
    pub(super) fn count_use(&self, key: &[u8]) -> u64 {
        let Some(opened) = self.opened.get() else {
            return 0;
        };
        // Counted by a hash with random keys. A collision stores a response a few requests early, and a client cannot
        // provoke one.
        let hash = opened.hasher.hash_one(key);
        let mut uses = opened.uses.lock();
        match uses.get(&hash) {
            Some(count) => {
                *count = count.saturating_add(1);
                u64::from(*count)
            }
            None => {
                uses.insert(hash, 1);
                1
            }
        }
    }

    /// How often a request for a key has been counted.
    pub(super) fn known_uses(&self, key: &[u8]) -> u64 {
        let Some(opened) = self.opened.get() else {
            return 0;
        };
        let hash = opened.hasher.hash_one(key);
        let mut uses = opened.uses.lock();
        uses.get(&hash).map_or(0, |count| u64::from(*count))
    }
}

impl CacheZones {
    fn map(&self) -> MutexGuard<'_, BTreeMap<BString, Arc<CacheZone>>> {
        self.0.lock()
    }

    /// The cache of this name.
    pub fn find_zone(&self, name: &[u8]) -> Option<Arc<CacheZone>> {
        self.map().get(BStr::new(name)).cloned()
    }

    /// All caches, by name.
    pub fn all_zones(&self) -> Vec<Arc<CacheZone>> {
        self.map().values().cloned().collect()
    }

    /// The cache of this name, for a line that refers to it. As in nginx, it may be declared further down.
    pub fn refer_to_zone(line: &mut DirectiveLine, name: &BStr) -> Arc<CacheZone> {
        let referred = Some((line.node.span, line.name().to_string()));
        let caches = line.lasting::<CacheZones>().clone();
        let mut map = caches.map();
        let make = || {
            Arc::new(CacheZone {
                name: name.to_owned(),
                declared: OnceLock::new(),
                opened: OnceLock::new(),
                referred,
                cluster: ZoneCluster::default(),
            })
        };
        Arc::clone(map.entry(name.to_owned()).or_insert_with(make))
    }

    /// Declares a cache; an error if its name or its directory is taken.
    pub fn declare_zone(
        line: &mut DirectiveLine,
        name: &BStr,
        parameters: ZoneParameters,
    ) -> Result<(), Diagnostic> {
        let place = line.sources().place(line.node.span).unwrap_or_default();
        let cache = CacheZones::refer_to_zone(line, name);
        let others = line.shared::<CacheZones>().all_zones();
        // Two stores in one directory would delete each other's files.
        let same_path = others.iter().find_map(|other| {
            let (known, place) = other.declared.get()?;
            (known.path == parameters.path && other.name != name).then_some(place)
        });
        if let Some(other) = same_path {
            let path = parameters.path.display();
            return Err(line.error(format!("the same path name \"{path}\" used in {other} and")));
        }
        if cache.declared.set((parameters, place)).is_err() {
            return Err(line.error(format!("duplicate zone \"{name}\"")));
        }
        Ok(())
    }

    /// Reports names that lines refer to and that no line declares. Called at the end, when all lines are known.
    pub fn check_declared(line: &mut DirectiveLine) {
        for cache in line.shared::<CacheZones>().all_zones() {
            if let (None, Some((span, directive))) = (cache.declared.get(), &cache.referred) {
                let text = format!("\"{directive}\" zone \"{}\" is unknown", cache.name);
                line.level.report(Diagnostic::error(text, *span));
            }
        }
    }

    /// Finds or opens the stores. Called by the worker before it serves.
    pub fn open_stores(&self, zones: &ZoneRegistry) {
        let deadline = rt::clock::read_clock() + OPEN_WAIT;
        let mut opened = Vec::new();
        for cache in self.all_zones() {
            let Some((declared, _)) = cache.declared.get() else {
                continue;
            };
            let key = declared.path.to_string_lossy();
            let own = declared.of_group(zones.group().place());
            // By path, not by name: a zone that is renamed keeps its objects.
            let store =
                zones.get_or_create(&key, || ZoneStore::new(&own, &declared.path, zones.group()));
            store.adopt(&own);
            *store.journal.lock() = cache.journal_link();
            // A reload in this process cancels the handover to another one.
            store.state().given_away = false;
            Arc::clone(&store).open_soon();
            opened.push(Arc::clone(cache.opened.get_or_init(|| store)));
        }
        take_purges(zones.group(), &opened);
        // All are opening by now, so one deadline bounds the wait for them together.
        opened.iter().for_each(|store| store.wait_until(deadline));
    }

    /// Leaves the stores to the process that follows this one. From now on requests here bypass them.
    pub fn give_away(&self) {
        for cache in self.all_zones() {
            let Some(opened) = cache.opened.get() else {
                continue;
            };
            let mut state = opened.state();
            state.given_away = true;
            if let Some(store) = state.store.take() {
                store.give_away();
                state.leaving = Some(store);
            }
        }
    }

    /// Gives the stores away, if that has not been done, and waits until their index is written, but no longer than
    /// until `deadline`. If a disk is slower, the next start reads a little more. Blocks.
    pub fn close_stores(&self, deadline: Instant) {
        self.give_away();
        let leaving = self.all_zones().into_iter().filter_map(|cache| {
            let opened = cache.opened.get()?;
            opened.state().leaving.take()
        });
        let leaving: Vec<cache::CacheStore> = leaving.collect();
        // One place per store, so that no store's thread waits for this one.
        let (sender, receiver) = std::sync::mpsc::sync_channel(leaving.len());
        for store in &leaving {
            let sender = sender.clone();
            // An error means that this function has returned because the time was over.
            store.after_pending_jobs(move || {
                let _ = sender.send(());
            });
        }
        for _ in &leaving {
            let left = deadline.saturating_duration_since(rt::clock::read_clock());
            if receiver.recv_timeout(left).is_err() {
                return;
            }
        }
    }

    /// Does the stores' upkeep, and returns what the error log should say.
    pub fn run_upkeep(&self) -> Vec<(Arc<CacheZone>, ZoneEvent)> {
        let mut news = Vec::new();
        for cache in self.all_zones() {
            let Some(opened) = cache.opened.get() else {
                continue;
            };
            match opened.store() {
                // The directory was removed or replaced. What the old store writes from now on is lost.
                Some(store) if store.has_vanished() => {
                    let error = opened.give_up(&store);
                    news.extend(error.map(|why| (Arc::clone(&cache), ZoneEvent::Trouble(why))));
                    Arc::clone(opened).open_soon();
                    continue;
                }
                Some(store) => {
                    opened.clean_up_soon();
                    store.run_upkeep(rt::wall_millis());
                }
                None => Arc::clone(opened).open_soon(),
            }
            if let Some(found) = opened.found_lately() {
                news.push((Arc::clone(&cache), ZoneEvent::Opened(found)));
            }
            match opened.news() {
                Some(Some(why)) => news.push((cache, ZoneEvent::Trouble(why))),
                Some(None) => news.push((cache, ZoneEvent::Recovered)),
                None => {}
            }
        }
        news
    }
}

/// Purges in these stores what other worker groups purge in theirs.
fn take_purges(group: &GroupMember, stores: &[Arc<ZoneStore>]) {
    let stores = stores.to_vec();
    group.on_message(PURGES, move |message| {
        let (length, rest) = message.split_first_chunk()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (path, purge) = rest.split_at_checked(length)?;
        let is_meant =
            |store: &&Arc<ZoneStore>| store.declared_path.as_os_str().as_encoded_bytes() == path;
        // A group whose configuration has no such cache any more has nothing to purge.
        stores.iter().find(is_meant)?.take_purge(purge);
        None
    });
}

/// Tells the other worker groups of a purge.
fn tell_purge(group: &Arc<GroupMember>, path: &Path, purge: &[u8]) {
    let path = path.as_os_str().as_encoded_bytes();
    let length = u32::try_from(path.len()).unwrap_or(0).to_le_bytes();
    let message = [&length[..], path, purge].concat();
    if group.tell(PURGES, &message) {
        return;
    }
    // Somebody purges faster than a group reads. Others may get it twice, which does no harm.
    let group = Arc::clone(group);
    let pool = rt::pool::default_pool();
    let again = move || group.tell_patiently(PURGES, &message);
    pool.submit(DeviceNumber::UNKNOWN, Box::new(again));
}

/// A message about a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZoneEvent {
    /// The store has been opened.
    Opened(OpenedStore),
    /// Something is wrong.
    Trouble(String),
    /// The trouble is over.
    Recovered,
}

/// What a store contained when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedStore {
    /// Objects in the index.
    pub objects: usize,
    /// Files whose permissions let other users read them, and that have been corrected.
    pub mended: usize,
    /// How long it took until the index was complete.
    pub took: Duration,
}

/// A store, kept by its path across reloads.
pub(super) struct ZoneStore {
    /// The directory in the configuration, which names the store in all worker groups.
    declared_path: PathBuf,
    group: Arc<GroupMember>,
    /// Where purges are told to other servers.
    journal: JournalLink,
    /// As far as it is this group's.
    declared: Mutex<ZoneParameters>,
    state: Mutex<ZoneStoreState>,
    changed: Condvar,
    uses: Mutex<Lru<u64, u32>>,
    hasher: rt::random::RandomState,
}

/// The state of a store that several loops use and a thread of the pool opens.
///
/// ```text
/// closed ── opening ─┬─ open ───── directory vanished ──▶ closed, and opening at once
///    ▲               ├─ failed ─── after a pause ───────▶ opening
///    │               └─ locked ─── after a short pause ─▶ opening
///    └── a new configuration ◀── given away, from any of these
/// ```
#[derive(Default)]
struct ZoneStoreState {
    store: Option<cache::CacheStore>,
    opening: bool,
    /// When the last attempt to open it failed.
    failed: Option<Instant>,
    /// It failed for lack of permission.
    denied: bool,
    /// Since when another process has held the lock.
    locked: Option<Instant>,
    /// It has been left to another process, and must not be opened here.
    given_away: bool,
    /// The store that was given away, until its end has been waited for.
    leaving: Option<cache::CacheStore>,
    last_error: Option<String>,
    /// What was logged last, so that the same error is logged once.
    logged: Option<String>,
    found: Option<OpenedStore>,
    /// `found_at_open` has not been logged yet.
    found_lately: bool,
    /// Purges of other groups that came while it was not open.
    missed: Vec<Vec<u8>>,
    /// There are directories of former groups that could not be removed yet.
    has_former_groups: bool,
}

impl ZoneStore {
    fn new(
        parameters: &ZoneParameters,
        declared_path: &Path,
        group: &Arc<GroupMember>,
    ) -> ZoneStore {
        ZoneStore {
            declared_path: declared_path.to_owned(),
            group: Arc::clone(group),
            journal: JournalLink::default(),
            declared: Mutex::new(parameters.clone()),
            state: Mutex::default(),
            changed: Condvar::new(),
            uses: Mutex::new(Lru::new(COUNTED_KEYS)),
            hasher: rt::random::RandomState::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, ZoneStoreState> {
        self.state.lock()
    }

    fn store(&self) -> Option<cache::CacheStore> {
        self.state().store.clone()
    }

    /// Applies the limits of a new configuration to the open store.
    fn adopt(&self, parameters: &ZoneParameters) {
        let mut known = self.declared.lock();
        if *known == *parameters {
            return;
        }
        known.clone_from(parameters);
        drop(known);
        if let Some(store) = self.store() {
            store.set_limits(&parameters.options());
        }
    }

    fn last_error(&self) -> Option<String> {
        let state = self.state();
        match &state.store {
            Some(store) => store.last_error(),
            None => state.last_error.clone(),
        }
    }

    /// Drops a store whose directory has vanished, and returns what the log should say.
    fn give_up(&self, store: &cache::CacheStore) -> Option<String> {
        let mut state = self.state();
        state.store = None;
        // It is to be opened again at once, not after the usual pause.
        state.failed = None;
        state.logged = store.last_error();
        state.last_error = state.logged.clone();
        state.logged.clone()
    }

    /// What the store contained when it was opened, if that has not been logged yet.
    fn found_lately(&self) -> Option<OpenedStore> {
        let mut state = self.state();
        std::mem::take(&mut state.found_lately)
            .then_some(state.found)
            .flatten()
    }

    /// The error, if another one was logged last.
    fn news(&self) -> Option<Option<String>> {
        let error = self.last_error();
        let mut state = self.state();
        if state.logged == error {
            return None;
        }
        state.logged.clone_from(&error);
        Some(error)
    }

    /// Opens the store on a thread of the pool, unless it is open or the last attempt was too recent. Requests call
    /// this too, so it must be cheap when there is nothing to do.
    fn open_soon(self: Arc<Self>) {
        let mut state = self.state();
        let pause = match (state.locked, state.denied) {
            (Some(_), _) => RETRY_LOCKED,
            (None, true) => RETRY_DENIED,
            (None, false) => RETRY,
        };
        let too_soon = state
            .failed
            .is_some_and(|failed| rt::clock::elapsed(failed) < pause);
        if state.store.is_some() || state.opening || state.given_away || too_soon {
            return;
        }
        state.opening = true;
        drop(state);
        let pool = rt::pool::default_pool();
        pool.submit(DeviceNumber::UNKNOWN, Box::new(move || self.open()));
    }

    /// Opens the store. Blocks.
    fn open(&self) {
        let options = self.declared.lock().options();
        let begun = rt::clock::read_clock();
        let opened = cache::CacheStore::open(options, rt::wall_millis());
        let took = rt::clock::elapsed(begun);
        let mut state = self.state();
        state.opening = false;
        match opened {
            // It was given away while it was being opened. Dropping it releases the lock.
            Ok(_) if state.given_away => {}
            Ok(store) => {
                let stats = store.stats();
                state.found = Some(OpenedStore {
                    objects: stats.objects,
                    mended: stats.mended,
                    took,
                });
                state.found_lately = true;
                self.join_groups(&store, &mut state);
                state.store = Some(store);
                state.failed = None;
                state.locked = None;
                state.last_error = None;
            }
            Err(error) => {
                let now = rt::clock::read_clock();
                state.failed = Some(now);
                state.denied = false;
                let since = match &error {
                    cache::StoreOpenError::Locked(_) => *state.locked.get_or_insert(now),
                    cache::StoreOpenError::Format(..) => {
                        state.locked = None;
                        now
                    }
                    cache::StoreOpenError::Io(_, why) => {
                        state.locked = None;
                        state.denied = why.kind() == std::io::ErrorKind::PermissionDenied;
                        now
                    }
                };
                // After an upgrade the previous process still holds the lock for a moment. That is worth a message only
                // if it lasts.
                if state.locked.is_none() || rt::clock::elapsed(since) >= LOCKED_PATIENCE {
                    state.last_error = Some(error.to_string());
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Connects a store that was just opened with those of the other groups.
    fn join_groups(&self, store: &cache::CacheStore, state: &mut ZoneStoreState) {
        for purge in std::mem::take(&mut state.missed) {
            store.take_purge(&purge);
        }
        let (group, path) = (Arc::clone(&self.group), self.declared_path.clone());
        let journal = Arc::clone(&self.journal);
        store.set_purge_listener(move |purge| {
            if group.has_siblings() {
                tell_purge(&group, &path, &purge);
            }
            tell_journal(&journal, purge);
        });
        if self.journal.lock().is_some() {
            // What was purged while this server was down is not known yet.
            store.hide_stored();
        }
        // The first group cleans up, as its directory contains the others.
        state.has_former_groups = self.group.place().index == 0 && self.remove_former_groups();
    }

    /// Removes the stores of groups that there are no longer: `max_size` is for all together. Returns whether one is
    /// still in use. Blocks.
    fn remove_former_groups(&self) -> bool {
        let count = self.group.place().count;
        // What cannot be read now cannot be removed either; the log speaks of the store itself.
        cache::remove_numbered_stores(&self.declared_path, GROUP_FOLDER, count)
            .is_ok_and(|all_removed| !all_removed)
    }

    /// Tries again to remove what former groups have left.
    fn clean_up_soon(self: &Arc<Self>) {
        if !std::mem::take(&mut self.state().has_former_groups) {
            return;
        }
        let store = Arc::clone(self);
        let clean_up = move || {
            let is_in_use = store.remove_former_groups();
            store.state().has_former_groups |= is_in_use;
        };
        let pool = rt::pool::default_pool();
        pool.submit(DeviceNumber::UNKNOWN, Box::new(clean_up));
    }

    /// Purges what another group has purged, as soon as the store is open.
    fn take_purge(&self, purge: &[u8]) {
        let mut state = self.state();
        match &state.store {
            Some(store) => store.take_purge(purge),
            None if state.missed.len() < MAX_MISSED => state.missed.push(purge.to_vec()),
            // An empty one is everything.
            None => state.missed = vec![Vec::new()],
        }
    }

    /// Waits until an attempt to open the store has ended. Blocks.
    fn wait_until(&self, deadline: Instant) {
        let mut state = self.state();
        while state.opening {
            let left = deadline.saturating_duration_since(rt::clock::read_clock());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).0;
        }
    }
}
