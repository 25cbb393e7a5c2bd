//! Where configuration files come from: the disk, or a recording of it.
//!
//! The master reads the configuration with its own privileges and records everything that was read.
//! A worker, which may not be able to read those files any more, builds the same configuration from
//! the recording. So everything that belongs to the configuration must be read through [`FileSource`].

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::glob;

/// Reads files and expands patterns for a configuration.
pub trait FileSource {
    /// The whole content of a file.
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>>;

    /// The same content, shared with a recording if there is one: a configuration may have many
    /// megabytes.
    fn read_shared(&mut self, path: &Path) -> io::Result<Arc<[u8]>> {
        self.read(path).map(Arc::from)
    }

    /// The existing paths that match a pattern of `*`, `?` and `[…]`, sorted by bytes; none is no
    /// error.
    fn glob(&mut self, pattern: &Path) -> io::Result<Vec<PathBuf>>;

    /// Everything read so far, if it is being recorded.
    fn recorded(&self) -> Option<&FileSnapshot> {
        None
    }

    /// What was read since this was last called, if that is being tracked.
    fn take_uses(&mut self) -> Option<Vec<FileUse>> {
        None
    }
}

/// What was read while a block was parsed or applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// A file: its content, or the number of the error.
    Read(PathBuf, Result<ContentHash, i32>),
    /// The files that match a pattern.
    Glob(PathBuf, Vec<PathBuf>),
}

/// Stands for a content that need not be kept, such as a private key: its length and two hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentHash(usize, u64, u64);

impl ContentHash {
    /// The hash of a content.
    pub fn of(content: &[u8]) -> ContentHash {
        let mut hashers = (DefaultHasher::new(), DefaultHasher::new());
        hashers.1.write_u8(1);
        content.hash(&mut hashers.0);
        content.hash(&mut hashers.1);
        ContentHash(content.len(), hashers.0.finish(), hashers.1.finish())
    }
}

/// Files that are compared with what was read before. Each is looked at once, however many blocks have read it.
#[derive(Debug, Default)]
pub struct PresentFiles {
    read: HashMap<PathBuf, Result<ContentHash, i32>>,
    globs: HashMap<PathBuf, Option<Vec<PathBuf>>>,
}

impl PresentFiles {
    /// Whether the same would be read.
    pub fn is_current(&mut self, used: &FileUse, files: &mut dyn FileSource) -> bool {
        match used {
            FileUse::Read(path, before) => {
                if !self.read.contains_key(path) {
                    let content = files.read_shared(path);
                    let content = content.map(|content| ContentHash::of(&content));
                    let content = content.map_err(|error| error.raw_os_error().unwrap_or(EIO));
                    self.read.insert(path.clone(), content);
                }
                self.read.get(path) == Some(before)
            }
            FileUse::Glob(pattern, before) => {
                if !self.globs.contains_key(pattern) {
                    let found = files.glob(pattern).ok();
                    self.globs.insert(pattern.clone(), found);
                }
                self.globs.get(pattern).and_then(Option::as_ref) == Some(before)
            }
        }
    }
}

/// Other files, with a list of what is read from them.
pub struct TrackedFiles {
    files: Box<dyn FileSource>,
    /// `None` before anyone asks.
    uses: Option<Vec<FileUse>>,
}

impl TrackedFiles {
    /// Tracks what is read from `files`.
    pub fn new(files: Box<dyn FileSource>) -> TrackedFiles {
        TrackedFiles { files, uses: None }
    }
}

impl FileSource for TrackedFiles {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_shared(path).map(|content| content.to_vec())
    }

    fn read_shared(&mut self, path: &Path) -> io::Result<Arc<[u8]>> {
        let content = self.files.read_shared(path);
        if let Some(uses) = &mut self.uses {
            let noted = match &content {
                Ok(content) => Ok(ContentHash::of(content)),
                Err(error) => Err(error.raw_os_error().unwrap_or(EIO)),
            };
            uses.push(FileUse::Read(path.to_owned(), noted));
        }
        content
    }

    fn glob(&mut self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        let paths = self.files.glob(pattern)?;
        if let Some(uses) = &mut self.uses {
            uses.push(FileUse::Glob(pattern.to_owned(), paths.clone()));
        }
        Ok(paths)
    }

    fn recorded(&self) -> Option<&FileSnapshot> {
        self.files.recorded()
    }

    fn take_uses(&mut self) -> Option<Vec<FileUse>> {
        let uses = self.uses.replace(Vec::new());
        Some(uses.unwrap_or_default())
    }
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFiles;

impl FileSource for DiskFiles {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn glob(&mut self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        glob::expand(pattern)
    }
}

/// A recording of reads, including failed ones: a configuration that tests whether a file exists
/// must find the same answer in the worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSnapshot {
    reads: BTreeMap<PathBuf, Result<Arc<[u8]>, i32>>,
    globs: BTreeMap<PathBuf, Vec<PathBuf>>,
}

impl FileSnapshot {
    /// Adds a file, as if it had been read.
    pub fn insert(&mut self, path: impl Into<PathBuf>, content: impl Into<Vec<u8>>) {
        let content: Vec<u8> = content.into();
        self.reads.insert(path.into(), Ok(content.into()));
    }

    /// Adds the result of a pattern.
    pub fn insert_glob(&mut self, pattern: impl Into<PathBuf>, paths: Vec<PathBuf>) {
        self.globs.insert(pattern.into(), paths);
    }

    /// The files that were read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let found = self.reads.iter().filter(|(_, read)| read.is_ok());
        found.map(|(path, _)| path.as_path())
    }

    /// The recording as bytes, to hand to another process. [`FileSnapshot::decode`] is its inverse.
    ///
    /// ```text
    /// "weircfg1"  then per record:  kind u8 ('F' file, 'E' failed read, 'G' glob)
    ///             path: u64 length, bytes;   F: u64 length, bytes;   E: i32;   G: u64 count, paths
    /// ```
    /// Numbers are little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        for (path, content) in &self.reads {
            out.push(if content.is_ok() { b'F' } else { b'E' });
            put_bytes(&mut out, path.as_os_str().as_bytes());
            match content {
                Ok(content) => put_bytes(&mut out, content),
                Err(code) => out.extend_from_slice(&code.to_le_bytes()),
            }
        }
        for (pattern, paths) in &self.globs {
            out.push(b'G');
            put_bytes(&mut out, pattern.as_os_str().as_bytes());
            out.extend_from_slice(&(paths.len() as u64).to_le_bytes());
            for path in paths {
                put_bytes(&mut out, path.as_os_str().as_bytes());
            }
        }
        out
    }

    /// Reads what [`FileSnapshot::encode`] wrote; `None` if it is anything else.
    pub fn decode(bytes: &[u8]) -> Option<FileSnapshot> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let mut snapshot = FileSnapshot::default();
        while let Some((&kind, after)) = rest.split_first() {
            rest = after;
            let path = take_path(&mut rest)?;
            match kind {
                b'F' => {
                    let content = take_bytes(&mut rest)?;
                    snapshot.reads.insert(path, Ok(content.into()));
                }
                b'E' => {
                    let (code, after) = rest.split_first_chunk::<4>()?;
                    rest = after;
                    snapshot.reads.insert(path, Err(i32::from_le_bytes(*code)));
                }
                b'G' => {
                    let count = take_length(&mut rest)?;
                    let paths = (0..count)
                        .map(|_| take_path(&mut rest))
                        .collect::<Option<Vec<_>>>()?;
                    snapshot.globs.insert(path, paths);
                }
                _ => return None,
            }
        }
        Some(snapshot)
    }
}

const MAGIC: &[u8] = b"weircfg1";

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn take_length(rest: &mut &[u8]) -> Option<usize> {
    let (length, after) = rest.split_first_chunk::<8>()?;
    *rest = after;
    usize::try_from(u64::from_le_bytes(*length)).ok()
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take_length(rest)?;
    let (bytes, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(bytes)
}

fn take_path(rest: &mut &[u8]) -> Option<PathBuf> {
    let bytes = take_bytes(rest)?;
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes.to_vec())))
}

impl FileSource for FileSnapshot {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_shared(path).map(|content| content.to_vec())
    }

    fn read_shared(&mut self, path: &Path) -> io::Result<Arc<[u8]>> {
        match self.reads.get(path) {
            Some(Ok(content)) => Ok(Arc::clone(content)),
            Some(Err(code)) => Err(io::Error::from_raw_os_error(*code)),
            None => Err(io::Error::from_raw_os_error(ENOENT)),
        }
    }

    fn glob(&mut self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        if let Some(paths) = self.globs.get(pattern) {
            return Ok(paths.clone());
        }
        let names = self.reads.iter().filter(|(_, content)| content.is_ok());
        let pattern = pattern.as_os_str().as_bytes();
        Ok(names
            .map(|(path, _)| path)
            .filter(|path| glob::matches(pattern, path.as_os_str().as_bytes()))
            .cloned()
            .collect())
    }

    fn recorded(&self) -> Option<&FileSnapshot> {
        Some(self)
    }
}

/// "No such file or directory": the same number on every architecture of Linux.
const ENOENT: i32 = 2;
/// "Input/output error": stands in for an error that has no number.
const EIO: i32 = 5;

/// Reads from other files and keeps a recording.
#[derive(Debug, Default)]
pub struct FileRecorder<F = DiskFiles> {
    files: F,
    snapshot: FileSnapshot,
}

impl<F: FileSource> FileRecorder<F> {
    /// A recorder that reads from `files`.
    pub fn new(files: F) -> FileRecorder<F> {
        FileRecorder {
            files,
            snapshot: FileSnapshot::default(),
        }
    }

    /// The recording.
    pub fn into_snapshot(self) -> FileSnapshot {
        self.snapshot
    }
}

impl<F: FileSource> FileSource for FileRecorder<F> {
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        self.read_shared(path).map(|content| content.to_vec())
    }

    fn read_shared(&mut self, path: &Path) -> io::Result<Arc<[u8]>> {
        // A file is read once: everything that names it sees the same content, even if a second
        // read would return something else, or nothing (a pipe).
        if self.snapshot.reads.contains_key(path) {
            return self.snapshot.read_shared(path);
        }
        let content = self.files.read_shared(path);
        let recorded = match &content {
            Ok(content) => Ok(Arc::clone(content)),
            Err(error) => Err(error.raw_os_error().unwrap_or(EIO)),
        };
        self.snapshot.reads.insert(path.to_owned(), recorded);
        content
    }

    fn glob(&mut self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        let paths = self.files.glob(pattern)?;
        self.snapshot
            .globs
            .insert(pattern.to_owned(), paths.clone());
        Ok(paths)
    }

    fn recorded(&self) -> Option<&FileSnapshot> {
        Some(&self.snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_answers_like_the_disk_it_was_made_from() {
        let mut disk = FileSnapshot::default();
        disk.insert("/a/1.conf", "one");
        disk.insert("/a/2.conf", "two");
        let mut recorder = FileRecorder::new(disk);
        assert_eq!(recorder.glob(Path::new("/a/*.conf")).unwrap().len(), 2);
        assert_eq!(recorder.read(Path::new("/a/1.conf")).unwrap(), b"one");
        assert!(recorder.read(Path::new("/missing")).is_err());

        let bytes = recorder.recorded().unwrap().encode();
        let mut copy = FileSnapshot::decode(&bytes).unwrap();
        assert_eq!(copy, recorder.into_snapshot());
        assert_eq!(copy.glob(Path::new("/a/*.conf")).unwrap().len(), 2);
        assert_eq!(
            copy.read(Path::new("/missing")).unwrap_err().raw_os_error(),
            Some(ENOENT)
        );
        assert_eq!(
            copy.read(Path::new("/a/2.conf"))
                .unwrap_err()
                .raw_os_error(),
            Some(ENOENT),
            "not read, not recorded"
        );
    }

    #[test]
    fn damaged_recordings_are_refused() {
        let mut snapshot = FileSnapshot::default();
        snapshot.insert("/a", "text");
        snapshot.insert_glob("/b*", vec!["/b1".into()]);
        let bytes = snapshot.encode();
        for cut in 0..bytes.len() {
            let decoded = FileSnapshot::decode(&bytes[..cut]);
            assert_ne!(decoded.as_ref(), Some(&snapshot), "cut at {cut}");
        }
        let mut claims = MAGIC.to_vec();
        claims.push(b'F');
        claims.extend_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(FileSnapshot::decode(&claims), None);
    }
}
