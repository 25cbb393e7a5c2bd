//! `open_file_cache`: open files, and the metadata of files, directories and missing files.
//!
//! Each loop has caches of its own, so that nothing is locked; locations with the same settings share one. An entry is
//! trusted for `open_file_cache_valid` and then checked again. A file is kept open once it has been used
//! `open_file_cache_min_uses` times. Entries leave when they have not been used for `inactive`, or when the cache is
//! full and they were used longest ago.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use base::lru::Lru;
use rt::file::SymlinkCheck;

use super::{FilePurpose, OpenFile, OpenFileResult, file_content};
use crate::core::delivery::{DeliveryConf, OpenFileCache};

/// What the cache knows of a path.
pub(super) enum OpenFileLookup {
    /// A result that is still trusted.
    Hit(OpenFileResult),
    /// An open file whose time is over: it has to be checked again.
    Aged(OpenFile),
    /// Nothing that can be used.
    Miss,
}

struct OpenFiles {
    settings: OpenFileCache,
    entries: Lru<Vec<u8>, OpenFileEntry>,
}

struct OpenFileEntry {
    found: OpenFileResult,
    check: Option<SymlinkCheck>,
    checked: Instant,
    used: Instant,
    uses: i64,
    content: file_content::FileContentSlot,
}

rt::local! {
    static CACHES: RefCell<Vec<OpenFiles>> = const { RefCell::new(Vec::new()) };
}

/// How many entries are tested for inactivity at each use. Two, so that a cache in use shrinks, without a task that
/// walks through it.
const EXPIRED_AT_ONCE: usize = 2;

/// Looks up a path, and counts that as a use.
pub(super) fn lookup_file(
    settings: OpenFileCache,
    delivery: &DeliveryConf,
    path: &[u8],
    check: Option<SymlinkCheck>,
    purpose: FilePurpose,
) -> OpenFileLookup {
    with(settings, |cache| {
        let now = rt::now();
        cache.expire(now);
        let Some(entry) = cache.entries.get(path) else {
            return OpenFileLookup::Miss;
        };
        entry.used = now;
        entry.uses += 1;
        // Another location may refuse links that this entry was found through: what one may see does not answer for the
        // other.
        if entry.check != check || !entry.serves(purpose) {
            return OpenFileLookup::Miss;
        }
        if !is_past(now, entry.checked, delivery.open_file_cache_valid) {
            let mut found = entry.found.clone();
            if let Ok(file) = &mut found
                && purpose == FilePurpose::Read
            {
                // Only here, while the entry is trusted: content of a file that has been replaced must not be served.
                file.content = entry.content.current_content(file, entry.uses, now);
            }
            return OpenFileLookup::Hit(found);
        }
        match &entry.found {
            Ok(file) => OpenFileLookup::Aged(file.clone()),
            Err(_) => OpenFileLookup::Miss,
        }
    })
}

/// Notes that an entry was checked and is still right.
pub(super) fn mark_checked(settings: OpenFileCache, path: &[u8]) {
    with(settings, |cache| {
        if let Some(entry) = cache.entries.get(path) {
            entry.checked = rt::now();
        }
    });
}

/// Stores a result.
pub(super) fn store_entry(
    settings: OpenFileCache,
    delivery: &DeliveryConf,
    path: &[u8],
    check: Option<SymlinkCheck>,
    found: &OpenFileResult,
) {
    with(settings, |cache| {
        // An earlier, successful entry must go, too: the file is not there any more.
        if found.is_err() && !delivery.open_file_cache_errors {
            cache.entries.remove(path);
            return;
        }
        let now = rt::now();
        let uses = cache.entries.get(path).map_or(1, |entry| entry.uses);
        let mut found = found.clone();
        if let Ok(file) = &mut found
            // A file that is rarely used does not occupy a descriptor; its metadata is kept all the same.
            && (uses < delivery.open_file_cache_min_uses || !file.is_file())
        {
            file.file = None;
        }
        cache.entries.insert(
            path.to_vec(),
            OpenFileEntry {
                found,
                check,
                checked: now,
                used: now,
                uses,
                content: file_content::FileContentSlot::default(),
            },
        );
    });
}

fn with<T>(settings: OpenFileCache, act: impl FnOnce(&mut OpenFiles) -> T) -> T {
    CACHES.with(|caches| {
        let mut caches = caches.borrow_mut();
        let index = caches
            .iter()
            .position(|cache| cache.settings == settings)
            .unwrap_or_else(|| {
                caches.push(OpenFiles {
                    settings,
                    entries: Lru::new(settings.max),
                });
                caches.len() - 1
            });
        act(&mut caches[index])
    })
}

/// Whether this time has passed since a moment. A time beyond what the clock can hold never passes.
fn is_past(now: Instant, since: Instant, time: Duration) -> bool {
    since.checked_add(time).is_some_and(|end| end <= now)
}

impl OpenFiles {
    fn expire(&mut self, now: Instant) {
        for _ in 0..EXPIRED_AT_ONCE {
            match self.entries.oldest() {
                Some((_, entry))
                    if entry.used != now && is_past(now, entry.used, self.settings.inactive) =>
                {
                    self.entries.pop_oldest();
                }
                _ => return,
            }
        }
    }
}

impl OpenFileEntry {
    /// Whether the entry is enough for this purpose: a regular file can be read only if it is open.
    fn serves(&self, purpose: FilePurpose) -> bool {
        match &self.found {
            Err(_) => true,
            Ok(found) => purpose == FilePurpose::Look || found.file.is_some() || !found.is_file(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FileError;
    use super::*;
    use std::time::Duration;

    const SETTINGS: OpenFileCache = OpenFileCache {
        max: 2,
        inactive: Duration::from_secs(60),
    };
    const MISSING: OpenFileResult = Err(FileError {
        errno: 2,
        call: "open()",
    });

    fn delivery(errors: bool, valid: Duration) -> DeliveryConf {
        DeliveryConf {
            open_file_cache_errors: errors,
            open_file_cache_valid: valid,
            ..DeliveryConf::default()
        }
    }

    fn is_hit(conf: &DeliveryConf, path: &[u8]) -> bool {
        matches!(
            lookup_file(SETTINGS, conf, path, None, FilePurpose::Read),
            OpenFileLookup::Hit(_)
        )
    }

    #[test]
    fn failures_are_kept_only_when_told_and_for_their_time() {
        let long = Duration::from_secs(60);
        let (kept, forgotten) = (delivery(true, long), delivery(false, long));
        store_entry(SETTINGS, &forgotten, b"/x", None, &MISSING);
        assert!(!is_hit(&forgotten, b"/x"));
        store_entry(SETTINGS, &kept, b"/x", None, &MISSING);
        assert!(is_hit(&kept, b"/x"));
        assert!(!is_hit(&delivery(true, Duration::ZERO), b"/x"));
    }

    #[test]
    fn a_full_cache_forgets_what_was_used_longest_ago() {
        let conf = delivery(true, Duration::from_secs(60));
        for path in [&b"/1"[..], b"/2"] {
            store_entry(SETTINGS, &conf, path, None, &MISSING);
        }
        assert!(is_hit(&conf, b"/1"));
        store_entry(SETTINGS, &conf, b"/3", None, &MISSING);
        assert!(is_hit(&conf, b"/1") && !is_hit(&conf, b"/2") && is_hit(&conf, b"/3"));
    }

    #[test]
    fn a_path_judged_otherwise_is_another_matter() {
        let conf = delivery(true, Duration::from_secs(60));
        store_entry(SETTINGS, &conf, b"/j", None, &MISSING);
        let judged = Some(SymlinkCheck {
            links: rt::file::SymlinkPolicy::Refused,
            from: 0,
        });
        assert!(matches!(
            lookup_file(SETTINGS, &conf, b"/j", judged, FilePurpose::Read),
            OpenFileLookup::Miss
        ));
    }
}
