//! The content of small, frequently requested files, kept with the open file by `open_file_cache`.
//!
//! A hot file of some KB then costs no system call of its own: head and content leave together from memory. The open
//! file is examined again (`fstat`, which never waits for a disk) before content is used that has not been checked for
//! [`CHECKED_EVERY`]: a change made in place is visible after that time at the latest.
//!
//! Only files on file systems that can be read without waiting have their content here. The others are those on the
//! network, where `fstat` would wait, too.

use std::cell::Cell;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rt::file::FileMetadata;

use super::OpenFile;

/// The largest file whose content is kept, in bytes: what the connection would read, not send by `sendfile`.
const LARGEST: u64 = 32 * 1024;

/// How much content each loop keeps at most, in bytes.
const MOST: u64 = 8 * 1024 * 1024;

/// How often an entry must be used before its content is kept: most files are requested once.
const FROM_USES: i64 = 4;

/// How long content is used without checking the file again.
const CHECKED_EVERY: Duration = Duration::from_millis(100);

/// How long a file must not have changed before its content is kept, in milliseconds. A write at the moment of our
/// reading may leave the modification time as it was, since the kernel's clock for it ticks only a few hundred times a
/// second.
const QUIET_MS: u64 = 2_000;

rt::local! {
    /// Bytes of all contents of this loop.
    static KEPT: Cell<u64> = const { Cell::new(0) };
}

/// Kept content, which counts against the loop's limit for as long as it exists.
pub(super) struct FileContent {
    bytes: Bytes,
    checked: Instant,
}

impl Drop for FileContent {
    fn drop(&mut self) {
        let length = self.bytes.len() as u64;
        // While the thread ends its locals may be gone already.
        let _ended = KEPT.try_with(|kept| kept.set(kept.get().saturating_sub(length)));
    }
}

/// The content slot of an entry.
#[derive(Default)]
pub(super) struct FileContentSlot {
    content: Option<FileContent>,
    /// When it was last tried to read the content: a file that cannot be kept is not tried at every request.
    tried: Option<Instant>,
}

impl FileContentSlot {
    /// The current content of `file`, if it is kept, or if it is worth keeping from now on.
    pub(super) fn current_content(
        &mut self,
        file: &OpenFile,
        uses: i64,
        now: Instant,
    ) -> Option<Bytes> {
        if let Some(content) = &mut self.content {
            if now < content.checked + CHECKED_EVERY {
                return Some(content.bytes.clone());
            }
            if is_unchanged(file) {
                content.checked = now;
                return Some(content.bytes.clone());
            }
            self.content = None;
            self.tried = Some(now);
            return None;
        }
        if uses < FROM_USES || !(1..=LARGEST).contains(&file.length()) {
            return None;
        }
        let recently = |tried| now.saturating_duration_since(tried) < CHECKED_EVERY;
        if self.tried.is_some_and(recently) {
            return None;
        }
        self.tried = Some(now);
        self.content = read(file, now);
        self.content.as_ref().map(|content| content.bytes.clone())
    }
}

fn read(file: &OpenFile, now: Instant) -> Option<FileContent> {
    let length = file.length();
    let open = file.file.as_ref().filter(|open| !open.is_direct())?;
    let is_room = KEPT.get() + length <= MOST;
    if !is_room || !is_quiet(&file.metadata, rt::wall_millis()) {
        return None;
    }
    let mut bytes = Vec::new();
    let n = open.try_read_into(&mut bytes, length as usize, 0).ok()?;
    // Checked after reading as well: a write in between would leave a mixture of two versions here.
    if n as u64 != length || !is_unchanged(file) {
        return None;
    }
    KEPT.set(KEPT.get() + length);
    Some(FileContent {
        bytes: bytes.into(),
        checked: now,
    })
}

/// Whether the open file is still what it was when it was opened.
fn is_unchanged(file: &OpenFile) -> bool {
    let now = file.file.as_ref().map(|open| open.metadata());
    matches!(now, Some(Ok(now)) if file.is_still(&now))
}

fn is_quiet(metadata: &FileMetadata, wall_ms: u64) -> bool {
    let changed_ms = u64::try_from(metadata.mtime)
        .unwrap_or(0)
        .saturating_mul(1000);
    changed_ms.saturating_add(1000 + QUIET_MS) <= wall_ms
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;

    use super::*;

    const LONG_AGO: i64 = 1_000_000_000;

    /// An open file of this content that was changed long ago, and its path.
    fn file(name: &str, content: &[u8]) -> (OpenFile, std::path::PathBuf) {
        let name = format!("weir-content-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).expect("a file");
        (open(&path), path)
    }

    fn open(path: &std::path::Path) -> OpenFile {
        let file = std::fs::File::open(path).expect("the file");
        let age = std::time::UNIX_EPOCH + Duration::from_secs(LONG_AGO as u64);
        file.set_modified(age).expect("our file");
        let file = rt::file::File::from_fd(OwnedFd::from(file));
        OpenFile {
            metadata: file.metadata().expect("an open file"),
            file: Some(file),
            content: None,
        }
    }

    #[test]
    fn content_is_kept_for_files_in_use_until_they_change() {
        let (file, path) = file("changes", b"old");
        let mut slot = FileContentSlot::default();
        let now = Instant::now();
        assert_eq!(slot.current_content(&file, FROM_USES - 1, now), None);
        let Some(bytes) = slot.current_content(&file, FROM_USES, now) else {
            // A file system that cannot be read without waiting, or a busy one.
            return;
        };
        assert_eq!(&bytes[..], b"old");
        assert_eq!(KEPT.get(), 3);
        let mut writer = std::fs::OpenOptions::new().write(true).open(&path);
        let writer = writer.as_mut().expect("the same file");
        writer.write_all(b"new").expect("it is ours");
        let later = now + CHECKED_EVERY;
        assert_eq!(slot.current_content(&file, FROM_USES, later), None);
        assert_eq!(KEPT.get(), 0);
        // Not again for a while: the file has just changed, and is not what it was when it was opened.
        assert_eq!(
            slot.current_content(&file, FROM_USES, later + CHECKED_EVERY),
            None
        );
        std::fs::remove_file(path).expect("it is ours");
    }

    #[test]
    fn large_and_empty_files_have_none() {
        for (name, length) in [("large", LARGEST as usize + 1), ("empty", 0)] {
            let (file, path) = file(name, &vec![b'x'; length]);
            assert_eq!(
                FileContentSlot::default().current_content(&file, 100, Instant::now()),
                None
            );
            std::fs::remove_file(path).expect("it is ours");
        }
    }

    #[test]
    fn a_file_that_was_just_changed_is_left_alone() {
        let metadata = |file: &OpenFile| file.metadata;
        let (file, path) = file("quiet", b"x");
        let changed = u64::try_from(metadata(&file).mtime).expect("after 1970") * 1000;
        assert!(!is_quiet(&metadata(&file), changed + QUIET_MS));
        assert!(is_quiet(&metadata(&file), changed + QUIET_MS + 1000));
        std::fs::remove_file(path).expect("it is ours");
    }
}
