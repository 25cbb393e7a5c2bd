//! `open_log_file_cache`: keeps log files with variables in their names open.
//!
//! Used on pool threads only, so its lock may be held across calls that block on a disk.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::lru::Lru;
use base::sync::Mutex;
use conf::{Diagnostic, DirectiveLine};
use rt::file::modes::PermissiveMode;

/// The open files of one `open_log_file_cache` line.
pub(crate) struct OpenLogFiles {
    entries: Mutex<Lru<PathBuf, OpenLog>>,
    /// Files unused for this long are closed.
    inactive: Duration,
    /// How long to trust that the path still refers to the open file; log rotation renames it.
    valid: Duration,
    /// A file stays open from this use on; rarely used ones do not take up descriptors.
    min_uses: u64,
}

/// What is known about a path.
struct OpenLog {
    /// Open once it has been used `min_uses` times.
    file: Option<Arc<File>>,
    uses: u64,
    used: Instant,
    /// When the path was last verified to refer to the file.
    checked: Instant,
}

impl OpenLogFiles {
    /// Reads `max=N [inactive=time] [min_uses=N] [valid=time]`; `None` for `off`.
    pub(crate) fn read(line: &mut DirectiveLine) -> Result<Option<Arc<OpenLogFiles>>, Diagnostic> {
        // nginx's defaults.
        let (mut max, mut inactive, mut min_uses, mut valid) =
            (0, Duration::from_secs(10), 1, Duration::from_secs(60));
        for index in 0..line.args().len() {
            let text = line.text(index);
            let number = |name| conf::parse::parameter(text, name).and_then(conf::parse::number);
            let time = |name| conf::parse::parameter(text, name).and_then(conf::parse::seconds);
            if text == "off" {
                return Ok(None);
            } else if let Some(value) = number("max") {
                max = value;
            } else if let Some(value) = time("inactive") {
                inactive = value;
            } else if let Some(value) = number("min_uses") {
                min_uses = value;
            } else if let Some(value) = time("valid") {
                valid = value;
            } else {
                return Err(line.error_at(
                    index,
                    format!("invalid \"open_log_file_cache\" parameter \"{text}\""),
                ));
            }
        }
        if max == 0 {
            return Err(line.error("\"open_log_file_cache\" must have \"max\" parameter"));
        }
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        Ok(Some(Arc::new(OpenLogFiles::new(
            max,
            inactive,
            min_uses.unsigned_abs(),
            valid,
        ))))
    }

    fn new(max: usize, inactive: Duration, min_uses: u64, valid: Duration) -> OpenLogFiles {
        OpenLogFiles {
            entries: Mutex::new(Lru::new(max)),
            inactive,
            valid,
            min_uses,
        }
    }

    /// The open file of a path.
    pub(super) fn open(&self, path: &Path, tell: &dyn Fn(PermissiveMode)) -> io::Result<Arc<File>> {
        self.open_at(path, rt::clock::read_clock(), tell)
    }

    /// As [`OpenLogFiles::open`], at a given time: for tests.
    fn open_at(
        &self,
        path: &Path,
        now: Instant,
        tell: &dyn Fn(PermissiveMode),
    ) -> io::Result<Arc<File>> {
        let mut entries = self.entries.lock();
        // There is no timer: unused files are closed when the cache is next used.
        while let Some((_, entry)) = entries.oldest()
            && now.duration_since(entry.used) > self.inactive
        {
            entries.pop_oldest();
        }
        let Some(entry) = entries.get(path) else {
            // Opened before it is entered, so that a path that fails evicts nothing.
            let file = Arc::new(super::variable_log::open(path, tell)?);
            let kept = (self.min_uses <= 1).then(|| Arc::clone(&file));
            entries.insert(
                path.to_owned(),
                OpenLog {
                    file: kept,
                    uses: 1,
                    used: now,
                    checked: now,
                },
            );
            return Ok(file);
        };
        entry.uses += 1;
        entry.used = now;
        let is_fresh = now.duration_since(entry.checked) < self.valid;
        if let Some(file) = &entry.file
            && (is_fresh || is_still_at(file, path))
        {
            if !is_fresh {
                entry.checked = now;
            }
            return Ok(Arc::clone(file));
        }
        // Renamed, or not open yet. The old file is closed before the new one is opened.
        entry.file = None;
        let file = Arc::new(super::variable_log::open(path, tell)?);
        if entry.uses >= self.min_uses {
            entry.file = Some(Arc::clone(&file));
            entry.checked = now;
        }
        Ok(file)
    }
}

/// Whether a path still refers to an open file, by device and inode.
fn is_still_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(there)) => identity(open) == identity(there),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("weir-open-files-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary folder can be written");
        path
    }

    #[test]
    fn a_file_stays_open_after_enough_uses_and_until_it_is_idle() {
        let folder = folder("uses");
        let path = folder.join("a");
        let (second, start) = (Duration::from_secs(1), Instant::now());
        let files = OpenLogFiles::new(2, 10 * second, 2, 60 * second);
        let is_kept = |at: Instant| {
            Arc::strong_count(&files.open_at(&path, at, &|_| {}).expect("it can be opened")) == 2
        };
        assert!(!is_kept(start), "the first use");
        assert!(is_kept(start + second), "the second");
        assert!(
            is_kept(start + 11 * second),
            "not idle for longer than ten seconds"
        );
        assert!(!is_kept(start + 22 * second), "forgotten");
        fs::remove_dir_all(folder).expect("we made it");
    }

    #[test]
    fn a_moved_file_is_noticed_when_it_is_asked_again() {
        let folder = folder("moved");
        let (path, moved) = (folder.join("a"), folder.join("b"));
        let (second, start) = (Duration::from_secs(1), Instant::now());
        let files = OpenLogFiles::new(2, 100 * second, 1, 5 * second);
        let inode = |at: Instant| {
            files
                .open_at(&path, at, &|_| {})
                .and_then(|file| file.metadata())
                .expect("it is open")
                .ino()
        };
        let first = inode(start);
        fs::rename(&path, &moved).expect("we may");
        assert_eq!(inode(start + 4 * second), first);
        assert_ne!(inode(start + 5 * second), first);
        fs::remove_dir_all(folder).expect("we made it");
    }

    #[test]
    fn the_file_used_longest_ago_leaves_but_not_for_one_that_can_not_be_opened() {
        let folder = folder("lru");
        let files = OpenLogFiles::new(2, Duration::from_secs(10), 1, Duration::from_secs(60));
        let now = Instant::now();
        for name in ["a", "b", "c"] {
            drop(
                files
                    .open_at(&folder.join(name), now, &|_| {})
                    .expect("it can be opened"),
            );
        }
        assert!(
            files
                .open_at(&folder.join("no/such/folder"), now, &|_| {})
                .is_err()
        );
        let entries = files.entries.lock();
        let is_open = |name: &str| entries.peek(&folder.join(name)).is_some();
        assert!(!is_open("a") && is_open("b") && is_open("c"));
        drop(entries);
        fs::remove_dir_all(folder).expect("we made it");
    }
}
