//! The server's session cache: `ssl_session_cache`.
//!
//! A cache has a name. It is shared by all servers that name it, by all loops, and by the configurations before and
//! after a reload. Its size is limited in bytes; the session that was unused for longest is evicted first.

use std::fmt;
use std::sync::{Arc, LazyLock};

use base::lru::Lru;
use base::sync::Mutex;
use rustls::server::StoresServerSessions;

use super::shared_by_name::SharedByName;

/// The approximate overhead of an entry in bytes.
const OVERHEAD: usize = 160;
/// The smallest possible entry, which limits their number.
const SMALLEST: usize = OVERHEAD + 80;

/// A session cache.
pub struct SessionCache {
    sessions: Mutex<SessionCacheState>,
}

struct SessionCacheState {
    entries: Lru<Vec<u8>, CachedSession>,
    bytes: usize,
    limit: usize,
}

struct CachedSession {
    issued: u64,
    value: Vec<u8>,
}

impl CachedSession {
    fn size(&self) -> usize {
        OVERHEAD + self.value.len()
    }
}

impl SessionCache {
    /// A cache of this many bytes that is not shared by name.
    pub fn new(bytes: usize) -> Arc<SessionCache> {
        Arc::new(SessionCache {
            sessions: Mutex::new(SessionCacheState {
                entries: Lru::new((bytes / SMALLEST).max(1)),
                bytes: 0,
                limit: bytes,
            }),
        })
    }

    /// The cache with this name and size in this process: the existing one, if it is in use.
    pub fn shared(name: &str, bytes: usize) -> Arc<SessionCache> {
        static KNOWN: LazyLock<SharedByName<(String, usize), SessionCache>> =
            LazyLock::new(SharedByName::default);
        KNOWN.get((name.to_owned(), bytes), || SessionCache::new(bytes))
    }

    fn put(&self, key: Vec<u8>, value: Vec<u8>, now: u64) -> bool {
        let entry = CachedSession { issued: now, value };
        let size = entry.size() + key.len();
        let mut sessions = self.lock();
        if size > sessions.limit {
            return false;
        }
        // Room is made before the insertion, so that the limit holds at every moment.
        while sessions.bytes + size > sessions.limit {
            let Some((key, old)) = sessions.entries.pop_oldest() else {
                break;
            };
            sessions.bytes -= old.size() + key.len();
        }
        let gone = sessions.entries.insert(key, entry);
        sessions.bytes += size;
        if let Some((key, old)) = gone {
            sessions.bytes -= old.size() + key.len();
        }
        true
    }

    fn get(&self, key: &[u8], now: u64, timeout: u32) -> Option<Vec<u8>> {
        let mut sessions = self.lock();
        let entry = sessions.entries.get(key)?;
        let age = now.saturating_sub(entry.issued);
        // An expired session stays until it is evicted: removing it early would need a search or a timer.
        (age <= u64::from(timeout)).then(|| entry.value.clone())
    }

    fn take(&self, key: &[u8], now: u64, timeout: u32) -> Option<Vec<u8>> {
        let mut sessions = self.lock();
        let entry = sessions.entries.remove(key)?;
        sessions.bytes -= entry.size() + key.len();
        // A clock that was set back must not make every session invalid.
        let age = now.saturating_sub(entry.issued);
        (age <= u64::from(timeout)).then_some(entry.value)
    }

    fn lock(&self) -> base::sync::MutexGuard<'_, SessionCacheState> {
        self.sessions.lock()
    }
}

/// The cache as one server's configuration uses it.
pub(super) struct ContextSessionCache {
    pub(super) cache: Arc<SessionCache>,
    /// A digest of what a session depends on. It is part of the key, so that other servers do not find the session.
    pub(super) context: [u8; 32],
    /// How long a session may be resumed, in seconds.
    pub(super) timeout: u32,
}

impl fmt::Debug for ContextSessionCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextSessionCache")
            .finish_non_exhaustive()
    }
}

impl ContextSessionCache {
    fn key(&self, id: &[u8]) -> Vec<u8> {
        [&self.context[..8], id].concat()
    }
}

impl StoresServerSessions for ContextSessionCache {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.cache
            .put(self.key(&key), value, rt::wall_millis() / 1000)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.cache
            .get(&self.key(key), rt::wall_millis() / 1000, self.timeout)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.cache
            .take(&self.key(key), rt::wall_millis() / 1000, self.timeout)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_keeps_to_its_size() {
        let cache = SessionCache::new(10_000);
        for number in 0..1000_u32 {
            assert!(cache.put(number.to_be_bytes().to_vec(), vec![0; 100], 0));
            assert!(cache.lock().bytes <= 10_000);
        }
        assert!(cache.get(&999_u32.to_be_bytes(), 5, 10).is_some());
        assert!(cache.get(&0_u32.to_be_bytes(), 5, 10).is_none());
        assert!(!cache.put(vec![1], vec![0; 20_000], 0));
        // The same key again replaces.
        assert!(cache.put(999_u32.to_be_bytes().to_vec(), vec![0; 50], 0));
        while !cache.lock().entries.is_empty() {
            let key = cache.lock().entries.oldest().map(|(key, _)| key.clone());
            let key = key.expect("it is not empty");
            cache.take(&key, 0, 10);
        }
        assert_eq!(cache.lock().bytes, 0);
    }

    #[test]
    fn what_is_too_old_is_not_found() {
        let cache = SessionCache::new(10_000);
        assert!(cache.put(vec![1], vec![2], 100));
        assert_eq!(cache.get(&[1], 110, 10), Some(vec![2]));
        assert_eq!(cache.get(&[1], 111, 10), None);
        assert_eq!(cache.take(&[1], 111, 10), None);
    }

    #[test]
    fn a_name_is_one_cache_while_somebody_holds_it() {
        let first = SessionCache::shared("a test's", 4096);
        assert!(Arc::ptr_eq(&first, &SessionCache::shared("a test's", 4096)));
        assert!(!Arc::ptr_eq(
            &first,
            &SessionCache::shared("a test's", 8192)
        ));
    }
}
