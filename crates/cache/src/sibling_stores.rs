//! Stores of other processes with the same responses (`worker_groups`): purges that they must learn of, and what is
//! left of a store when there are fewer of them.
//!
//! A purge as other processes receive it:
//!
//! ```text
//! mode u8 'h' | 's'   scope u8 'k' | 'p' | 't' | 'a'   rest: the key, prefix or tag
//! ```

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use crate::format;
use crate::store::CacheStore;
use crate::{CacheKey, PurgeMode, PurgeRequest};

impl CacheStore {
    /// Sets what is done with purges that other processes must learn of. The first call counts.
    pub fn set_purge_listener(&self, listener: impl Fn(Vec<u8>) + Send + Sync + 'static) {
        self.0.purge_listener.get_or_init(|| Arc::new(listener));
    }

    /// Purges here and in the stores of other processes.
    pub fn purge_everywhere(&self, what: PurgeRequest<'_>, mode: PurgeMode) {
        if let Some(listener) = self.0.purge_listener.get() {
            listener(what.to_message(mode));
        }
        self.purge(what, mode);
    }

    /// Purges what another process has purged. What cannot be read, of another release perhaps, purges everything:
    /// rather too much than too little.
    pub fn take_purge(&self, purge: &[u8]) {
        let Some(([mode, scope], name)) = purge.split_first_chunk() else {
            return self.purge(PurgeRequest::All, PurgeMode::Hard);
        };
        let mode = match mode {
            b's' => PurgeMode::Soft,
            _ => PurgeMode::Hard,
        };
        match scope {
            b'k' => self.purge(PurgeRequest::Key(&CacheKey::new(name)), mode),
            b'p' => self.purge(PurgeRequest::Prefix(name), mode),
            b't' => self.purge(PurgeRequest::Tag(name), mode),
            _ => self.purge(PurgeRequest::All, mode),
        }
    }
}

impl PurgeRequest<'_> {
    /// The purge as other processes receive it, for [`CacheStore::take_purge`].
    pub fn to_message(self, mode: PurgeMode) -> Vec<u8> {
        let mode = match mode {
            PurgeMode::Hard => b'h',
            PurgeMode::Soft => b's',
        };
        let (scope, name) = match self {
            PurgeRequest::Key(key) => (b'k', key.text()),
            PurgeRequest::Prefix(name) => (b'p', name),
            PurgeRequest::Tag(name) => (b't', name),
            PurgeRequest::All => (b'a', &[][..]),
        };
        [&[mode, scope], name].concat()
    }
}

/// Removes the stores in `folder` whose directories are named `prefix` and a number from `least` on. `false` if one is
/// still open in a process. Blocks.
pub fn remove_numbered_stores(folder: &Path, prefix: &str, least: usize) -> io::Result<bool> {
    let mut all_removed = true;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(prefix));
        let number: Option<usize> = number.and_then(|number| number.parse().ok());
        if number.is_some_and(|number| number >= least) {
            all_removed &= remove_store(&entry.path())?;
        }
    }
    Ok(all_removed)
}

/// Removes a directory with a store. `false` if a process has it open; what is no store is left alone.
fn remove_store(path: &Path) -> io::Result<bool> {
    let mut lock = match File::open(path.join("store")) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    if lock.try_lock().is_err() {
        return Ok(false);
    }
    let mut header = Vec::new();
    (&mut lock)
        .take(format::HEADER as u64)
        .read_to_end(&mut header)?;
    // Only what this program has made.
    if format::read_store(&header).is_some() {
        fs::remove_dir_all(path)?;
    }
    Ok(true)
}
