//! The caches of a configuration: `proxy_cache_path`, and the stores behind it.
//!
//! A configuration knows what its caches are to be. The worker opens their stores when it commits to it, on a thread of
//! the pool, and keeps them by path: a reload finds them open. A store that cannot be opened, or that fails later, is
//! no reason not to serve: requests pass it by, the error log says why, and it is tried again.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base::Lru;
use base::sync::{Condvar, Mutex, MutexGuard};
use bstr::{BStr, BString};
use conf::{Diagnostic, Line, Span};
use host::engine::Zones;
use rt::pool::Device;

/// How long a start or a reload waits for a store to open: requests before that would all go to the origin. One whose disk
/// is slower opens while requests are served.
const OPEN_WAIT: Duration = Duration::from_secs(1);

/// How often a store that could not be opened is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// The same where the worker's user may not write: the master gives it the folder soon.
const RETRY_DENIED: Duration = Duration::from_secs(2);

/// The same while another process has it: mostly one that is about to end.
const RETRY_LOCKED: Duration = Duration::from_millis(50);

/// How long another process may have a store before the log is told.
const LOCKED_PATIENCE: Duration = Duration::from_secs(2);

/// How often a store is looked after.
pub const UPKEEP: Duration = Duration::from_secs(2);

/// Keys whose uses are counted for `min_uses`, per cache. The one counted longest ago is forgotten for a new one.
const COUNTED_KEYS: usize = 32 * 1024;

/// What a `…_cache_path` line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The directory.
    pub path: PathBuf,
    /// The size of `keys_zone` in bytes: it bounds the number of objects.
    pub keys: u64,
    /// An object that was not asked for in this time goes; zero is never.
    pub inactive: Duration,
    /// The most bytes on the disk.
    pub max_size: u64,
    /// Bytes of the file system to leave free; 0 is no bound.
    pub min_free: u64,
    /// The most bytes of small objects in memory.
    pub memory: u64,
}

/// What an object in the index is reckoned at, in bytes of `keys_zone`. It takes less.
const BYTES_PER_KEY: u64 = 40;

impl Declared {
    fn options(&self) -> cache::Options {
        let mut options = cache::Options::new(&self.path, rt::pool::default_pool());
        options.max_size = self.max_size;
        options.min_free = self.min_free;
        options.inactive_ms = u64::try_from(self.inactive.as_millis()).unwrap_or(u64::MAX);
        options.memory = usize::try_from(self.memory).unwrap_or(usize::MAX);
        options.max_objects = (self.keys / BYTES_PER_KEY).max(1);
        options
    }
}

/// A cache by the name of its zone.
pub struct Cache {
    name: BString,
    declared: OnceLock<(Declared, String)>,
    /// Set when the worker commits to the configuration.
    opened: OnceLock<Arc<Opened>>,
    /// Where it was referred to first, and by which directive.
    referred: Option<(Span, String)>,
}

/// The caches of a configuration. Clones share them.
#[derive(Clone, Default)]
pub struct Caches(Arc<Mutex<BTreeMap<BString, Arc<Cache>>>>);

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("name", &self.name).finish()
    }
}

impl Cache {
    /// The name of the zone.
    pub fn name(&self) -> &BStr {
        self.name.as_ref()
    }

    /// The directory; empty for one that was never declared, with which no configuration serves.
    pub fn path(&self) -> &Path {
        self.declared
            .get()
            .map_or(Path::new(""), |(declared, _)| declared.path.as_path())
    }

    /// What was declared.
    pub fn declared(&self) -> Option<&Declared> {
        self.declared.get().map(|(declared, _)| declared)
    }

    /// The store, if it can be used now.
    pub fn store(&self) -> Option<cache::Store> {
        let opened = self.opened.get()?;
        let store = opened.store();
        if store.is_none() {
            Arc::clone(opened).open_soon();
        }
        store
    }

    /// What is wrong with it.
    pub fn trouble(&self) -> Option<String> {
        self.opened.get()?.trouble()
    }

    /// Figures, if it is open.
    pub fn stats(&self) -> Option<cache::Stats> {
        self.store().map(|store| store.stats())
    }

    /// What it had when it was opened.
    pub fn found(&self) -> Option<Found> {
        self.opened.get()?.state().found
    }

    /// Counts a use of a key and tells the number of uses.
    pub(super) fn count_use(&self, key: &[u8]) -> u64 {
        let Some(opened) = self.opened.get() else {
            return 0;
        };
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
}

impl Caches {
    fn map(&self) -> MutexGuard<'_, BTreeMap<BString, Arc<Cache>>> {
        self.0.lock()
    }

    /// The cache of a name.
    pub fn find(&self, name: &[u8]) -> Option<Arc<Cache>> {
        self.map().get(BStr::new(name)).cloned()
    }

    /// All caches, by name.
    pub fn all(&self) -> Vec<Arc<Cache>> {
        self.map().values().cloned().collect()
    }

    /// The cache of a name for a line that refers to it. It may be declared further down.
    pub fn refer(line: &mut Line, name: &BStr) -> Arc<Cache> {
        let referred = Some((line.node.span, line.name().to_string()));
        let caches = line.shared::<Caches>().clone();
        let mut map = caches.map();
        let make = || {
            Arc::new(Cache {
                name: name.to_owned(),
                declared: OnceLock::new(),
                opened: OnceLock::new(),
                referred,
            })
        };
        Arc::clone(map.entry(name.to_owned()).or_insert_with(make))
    }

    /// Declares a cache.
    pub fn declare(line: &mut Line, name: &BStr, declared: Declared) -> Result<(), Diagnostic> {
        let place = line.sources().place(line.node.span).unwrap_or_default();
        let cache = Caches::refer(line, name);
        let others = line.shared::<Caches>().all();
        let same_path = others.iter().find_map(|other| {
            let (known, place) = other.declared.get()?;
            (known.path == declared.path && other.name != name).then_some(place)
        });
        if let Some(other) = same_path {
            let path = declared.path.display();
            return Err(line.error(format!("the same path name \"{path}\" used in {other} and")));
        }
        if cache.declared.set((declared, place)).is_err() {
            return Err(line.error(format!("duplicate zone \"{name}\"")));
        }
        Ok(())
    }

    /// Reports caches that lines refer to and none declares.
    pub fn check(line: &mut Line) {
        for cache in line.shared::<Caches>().all() {
            if let (None, Some((span, directive))) = (cache.declared.get(), &cache.referred) {
                let text = format!("\"{directive}\" zone \"{}\" is unknown", cache.name);
                line.level.report(Diagnostic::error(text, *span));
            }
        }
    }

    /// Finds or opens the stores. For the worker, before it serves.
    pub fn commit(&self, zones: &Zones) {
        let deadline = rt::clock::read() + OPEN_WAIT;
        let mut opened = Vec::new();
        for cache in self.all() {
            let Some((declared, _)) = cache.declared.get() else {
                continue;
            };
            let key = declared.path.to_string_lossy();
            let store = zones.get_or_create(&key, || Opened::new(declared));
            store.adopt(declared);
            store.state().given_away = false;
            Arc::clone(&store).open_soon();
            opened.push(Arc::clone(cache.opened.get_or_init(|| store)));
        }
        opened.iter().for_each(|store| store.wait_until(deadline));
    }

    /// Lets the process that comes after this one have the stores: requests here go past them from now on.
    pub fn give_away(&self) {
        for cache in self.all() {
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

    /// Gives the stores away, if that has not been done, and waits until what they know is written down, until `deadline`
    /// at most: a disk that is slower is left alone, and the next start reads a little more. Blocks.
    pub fn close(&self, deadline: Instant) {
        self.give_away();
        let leaving = self.all().into_iter().filter_map(|cache| {
            let opened = cache.opened.get()?;
            opened.state().leaving.take()
        });
        let leaving: Vec<cache::Store> = leaving.collect();
        // Room for all answers, so that no store waits for this thread.
        let (sender, receiver) = std::sync::mpsc::sync_channel(leaving.len());
        for store in &leaving {
            let sender = sender.clone();
            // An error means that the receiver has gone: it took too long.
            store.then(move || {
                let _ = sender.send(());
            });
        }
        for _ in &leaving {
            let left = deadline.saturating_duration_since(rt::clock::read());
            if receiver.recv_timeout(left).is_err() {
                return;
            }
        }
    }

    /// Looks after the stores, and gives what is to be said of them in the log.
    pub fn maintain(&self) -> Vec<(Arc<Cache>, News)> {
        let mut news = Vec::new();
        for cache in self.all() {
            let Some(opened) = cache.opened.get() else {
                continue;
            };
            match opened.store() {
                Some(store) if store.has_vanished() => {
                    let trouble = opened.give_up(&store);
                    news.extend(trouble.map(|why| (Arc::clone(&cache), News::Trouble(why))));
                    Arc::clone(opened).open_soon();
                    continue;
                }
                Some(store) => store.maintain(rt::wall_millis()),
                None => Arc::clone(opened).open_soon(),
            }
            if let Some(found) = opened.found_lately() {
                news.push((Arc::clone(&cache), News::Opened(found)));
            }
            match opened.news() {
                Some(Some(why)) => news.push((cache, News::Trouble(why))),
                Some(None) => news.push((cache, News::Well)),
                None => {}
            }
        }
        news
    }
}

/// What there is to say of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It was opened.
    Opened(Found),
    /// Something is wrong.
    Trouble(String),
    /// Nothing is wrong any more.
    Well,
}

/// What a store had when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Objects in the index.
    pub objects: usize,
    /// Files whose modes were open to others, and are not now.
    pub mended: usize,
    /// How long it took until the index was whole.
    pub took: Duration,
}

/// A store by its path, over reloads.
pub(super) struct Opened {
    declared: Mutex<Declared>,
    state: Mutex<State>,
    changed: Condvar,
    uses: Mutex<Lru<u64, u32>>,
    hasher: rt::random::RandomState,
}

#[derive(Default)]
struct State {
    store: Option<cache::Store>,
    opening: bool,
    /// When opening failed last.
    failed: Option<Instant>,
    /// That was for want of rights.
    denied: bool,
    /// Since when another process has the directory.
    locked: Option<Instant>,
    /// It is the other process's turn.
    given_away: bool,
    /// The store that was given away, until its end was waited for.
    leaving: Option<cache::Store>,
    trouble: Option<String>,
    /// What the log was told last.
    said: Option<String>,
    found: Option<Found>,
    /// The log has not been told of `found`.
    found_lately: bool,
}

impl Opened {
    fn new(declared: &Declared) -> Opened {
        Opened {
            declared: Mutex::new(declared.clone()),
            state: Mutex::default(),
            changed: Condvar::new(),
            uses: Mutex::new(Lru::new(COUNTED_KEYS)),
            hasher: rt::random::RandomState::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn store(&self) -> Option<cache::Store> {
        self.state().store.clone()
    }

    /// Takes over what a new configuration says of the same directory.
    fn adopt(&self, declared: &Declared) {
        let mut known = self.declared.lock();
        if *known == *declared {
            return;
        }
        known.clone_from(declared);
        drop(known);
        if let Some(store) = self.store() {
            store.set_limits(&declared.options());
        }
    }

    fn trouble(&self) -> Option<String> {
        let state = self.state();
        match &state.store {
            Some(store) => store.trouble(),
            None => state.trouble.clone(),
        }
    }

    /// Lets go of a store whose directory has vanished, and gives what is to be said of it.
    fn give_up(&self, store: &cache::Store) -> Option<String> {
        let mut state = self.state();
        state.store = None;
        state.failed = None;
        state.said = store.trouble();
        state.trouble = state.said.clone();
        state.said.clone()
    }

    /// What the store had when it was opened, if the log was not told yet.
    fn found_lately(&self) -> Option<Found> {
        let mut state = self.state();
        std::mem::take(&mut state.found_lately)
            .then_some(state.found)
            .flatten()
    }

    /// The trouble, if it is not what the log was told last.
    fn news(&self) -> Option<Option<String>> {
        let trouble = self.trouble();
        let mut state = self.state();
        if state.said == trouble {
            return None;
        }
        state.said.clone_from(&trouble);
        Some(trouble)
    }

    /// Opens the store on a thread of the pool, unless it is open, or failed a moment ago.
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
        pool.submit(Device::UNKNOWN, Box::new(move || self.open()));
    }

    /// Blocks.
    fn open(&self) {
        let options = self.declared.lock().options();
        let begun = rt::clock::read();
        let opened = cache::Store::open(options, rt::wall_millis());
        let took = rt::clock::elapsed(begun);
        let mut state = self.state();
        state.opening = false;
        match opened {
            // Too late: it goes back as it came.
            Ok(_) if state.given_away => {}
            Ok(store) => {
                let stats = store.stats();
                state.found = Some(Found {
                    objects: stats.objects,
                    mended: stats.mended,
                    took,
                });
                state.found_lately = true;
                state.store = Some(store);
                state.failed = None;
                state.locked = None;
                state.trouble = None;
            }
            Err(error) => {
                let now = rt::clock::read();
                state.failed = Some(now);
                state.denied = false;
                let since = match &error {
                    cache::OpenError::Locked(_) => *state.locked.get_or_insert(now),
                    cache::OpenError::Io(_, why) => {
                        state.locked = None;
                        state.denied = why.kind() == std::io::ErrorKind::PermissionDenied;
                        now
                    }
                };
                // The process before this one is about to let go, as a rule.
                if state.locked.is_none() || rt::clock::elapsed(since) >= LOCKED_PATIENCE {
                    state.trouble = Some(error.to_string());
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    fn wait_until(&self, deadline: Instant) {
        let mut state = self.state();
        while state.opening {
            let left = deadline.saturating_duration_since(rt::clock::read());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).0;
        }
    }
}
