//! Certificates that are loaded when a connection needs them, because their paths contain variables.
//!
//! `ssl_certificate_cache max=N [inactive=time] [valid=time]` keeps what was loaded, and loads it again when
//! `valid` is over. Without a cache each handshake loads the files anew, as in nginx. Files are read on a thread of
//! the pool, with the worker's privileges.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::lru::Lru;
use base::sync::Mutex;
use bstr::{BStr, BString};

use super::config_error::TlsConfigError;
use super::identity::TlsIdentity;

/// The cache of loaded certificates.
pub struct IdentityCache {
    entries: Mutex<Lru<(BString, BString), CachedIdentity>>,
    inactive: Duration,
    valid: Duration,
}

struct CachedIdentity {
    identity: Arc<TlsIdentity>,
    loaded: Instant,
    used: Instant,
}

impl IdentityCache {
    /// A cache of at most `max` files; 0 keeps none. Certificates and keys count separately, as in nginx, so an
    /// entry here counts twice.
    pub fn new(max: usize, inactive: Duration, valid: Duration) -> IdentityCache {
        IdentityCache {
            entries: Mutex::new(Lru::new(max.div_ceil(2))),
            inactive,
            valid,
        }
    }

    /// The certificate and key at these paths.
    pub async fn get(
        &self,
        certificate: &BStr,
        key: &BStr,
        passwords: &Arc<Vec<Vec<u8>>>,
    ) -> Result<Arc<TlsIdentity>, TlsConfigError> {
        let names = (certificate.to_owned(), key.to_owned());
        if let Some(identity) = self.find(&names) {
            return Ok(identity);
        }
        let (wanted, passwords) = (names.clone(), Arc::clone(passwords));
        let load = move || {
            let (certificate, key) = &wanted;
            let mut read = |path: &std::path::Path| std::fs::read(path);
            TlsIdentity::load(certificate.as_ref(), key.as_ref(), &passwords, &mut read)
        };
        // Two connections may load the same files at once. That costs a read, which a lock across the wait would
        // save for the price of blocking all others.
        let identity = rt::pool::default_pool().run(load).await?;
        // A key that was encrypted is not cached: it should not stay in memory decrypted.
        if !identity.secret {
            self.keep(names, &identity);
        }
        Ok(identity)
    }

    fn find(&self, names: &(BString, BString)) -> Option<Arc<TlsIdentity>> {
        let now = rt::now();
        let mut entries = self.entries.lock();
        let entry = entries.get(names)?;
        let idle = now.saturating_duration_since(entry.used);
        let age = now.saturating_duration_since(entry.loaded);
        if idle >= self.inactive || age >= self.valid {
            entries.remove(names);
            return None;
        }
        entry.used = now;
        Some(Arc::clone(&entry.identity))
    }

    fn keep(&self, names: (BString, BString), identity: &Arc<TlsIdentity>) {
        let now = rt::now();
        let entry = CachedIdentity {
            identity: Arc::clone(identity),
            loaded: now,
            used: now,
        };
        let mut entries = self.entries.lock();
        entries.insert(names, entry);
    }
}
