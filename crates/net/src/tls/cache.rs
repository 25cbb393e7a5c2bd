//! Certificates that are loaded when a connection needs them, because their paths hold variables.
//!
//! `ssl_certificate_cache max=N [inactive=time] [valid=time]`: what was loaded is kept, and looked at again when `valid`
//! is over. Without a cache each handshake loads anew, as nginx does. Files are read on a pool's thread, with the
//! worker's rights.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::lru::Lru;
use base::sync::Mutex;
use bstr::{BStr, BString};

use super::identity::Identity;
use super::problem::Problem;

/// Certificates that were loaded.
pub struct IdentityCache {
    entries: Mutex<Lru<(BString, BString), Entry>>,
    inactive: Duration,
    valid: Duration,
}

struct Entry {
    identity: Arc<Identity>,
    loaded: Instant,
    used: Instant,
}

impl IdentityCache {
    /// A cache of at most `max` certificates and keys, each of which counts, as in nginx; 0: none is kept.
    pub fn new(max: usize, inactive: Duration, valid: Duration) -> IdentityCache {
        IdentityCache {
            entries: Mutex::new(Lru::new(max.div_ceil(2))),
            inactive,
            valid,
        }
    }

    /// The certificate and key of these paths.
    pub async fn get(
        &self,
        certificate: &BStr,
        key: &BStr,
        passwords: &Arc<Vec<Vec<u8>>>,
    ) -> Result<Arc<Identity>, Problem> {
        let names = (certificate.to_owned(), key.to_owned());
        if let Some(identity) = self.find(&names) {
            return Ok(identity);
        }
        let (wanted, passwords) = (names.clone(), Arc::clone(passwords));
        let load = move || {
            let (certificate, key) = &wanted;
            let mut read = |path: &std::path::Path| std::fs::read(path);
            Identity::load(certificate.as_ref(), key.as_ref(), &passwords, &mut read)
        };
        let identity = rt::pool::default_pool().run(load).await?;
        if !identity.secret {
            self.keep(names, &identity);
        }
        Ok(identity)
    }

    fn find(&self, names: &(BString, BString)) -> Option<Arc<Identity>> {
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

    fn keep(&self, names: (BString, BString), identity: &Arc<Identity>) {
        let now = rt::now();
        let entry = Entry {
            identity: Arc::clone(identity),
            loaded: now,
            used: now,
        };
        let mut entries = self.entries.lock();
        entries.insert(names, entry);
    }
}
