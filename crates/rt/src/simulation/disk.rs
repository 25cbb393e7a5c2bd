//! A record of what happens to one directory, for a machine that tries the states in which a crash may leave it.
//!
//! The calls are made, and what succeeded is written down. One directory is recorded at a time, by the process.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::sync::Mutex;

/// A file of the recorded directory. Names and inodes are used again, these numbers are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskFile(pub u32);

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskChange {
    /// The file came to be, under this name.
    Created(DiskFile, String),
    /// The file was emptied.
    Emptied(DiskFile),
    /// These bytes were written at this position.
    Written(DiskFile, u64, Vec<u8>),
    /// The file has this length.
    Resized(DiskFile, u64),
    /// Earlier contents of the file are on the disk.
    Synced(DiskFile),
    /// The first name is the second one.
    Renamed(String, String),
    /// The name is gone.
    Removed(String),
    /// Earlier names are on the disk.
    DirectorySynced,
}

#[derive(Default)]
struct DiskRecorder {
    directory: PathBuf,
    changes: Vec<DiskChange>,
    /// By inode: which file it is now.
    files: HashMap<u64, DiskFile>,
    next_file: u32,
    /// After this many more bytes the disk is full.
    room: Option<usize>,
}

static RECORDER: Mutex<Option<DiskRecorder>> = Mutex::new(None);

/// Begins to record what happens to `directory`. Files that are there count as created and synced, by name.
pub fn start_recording(directory: &Path) -> io::Result<()> {
    let mut recorder = DiskRecorder {
        directory: directory.to_owned(),
        ..DiskRecorder::default()
    };
    let mut present: Vec<PathBuf> = Vec::new();
    for item in std::fs::read_dir(directory)? {
        present.push(item?.path());
    }
    present.sort();
    for path in present {
        let file = recorder.create(&File::open(&path)?, &path);
        let content = std::fs::read(&path)?;
        recorder.changes.push(DiskChange::Written(file, 0, content));
        recorder.changes.push(DiskChange::Synced(file));
    }
    recorder.changes.push(DiskChange::DirectorySynced);
    *RECORDER.lock() = Some(recorder);
    Ok(())
}

/// How many changes there are so far.
pub fn recorded() -> usize {
    RECORDER.lock().as_ref().map_or(0, |r| r.changes.len())
}

/// Ends the recording, and gives it.
pub fn take_recording() -> Vec<DiskChange> {
    let recorder = RECORDER.lock().take();
    recorder.map_or(Vec::new(), |recorder| recorder.changes)
}

/// From now on the disk takes this many bytes, and then is full. `None`: it has room.
pub fn limit_room(room: Option<usize>) {
    if let Some(recorder) = RECORDER.lock().as_mut() {
        recorder.room = room;
    }
}

impl DiskRecorder {
    fn name(&self, path: &Path) -> Option<String> {
        let name = path.strip_prefix(&self.directory).ok()?;
        Some(name.to_string_lossy().into_owned())
    }

    /// Notes a file that was created or opened under this path.
    fn create(&mut self, file: &File, path: &Path) -> DiskFile {
        let number = DiskFile(self.next_file);
        self.next_file += 1;
        if let (Ok(found), Some(name)) = (file.metadata(), self.name(path)) {
            self.files.insert(found.ino(), number);
            self.changes.push(DiskChange::Created(number, name));
        }
        number
    }

    fn file(&self, file: impl AsFd) -> Option<DiskFile> {
        let found = rustix::fs::fstat(file).ok()?;
        self.files.get(&found.st_ino).copied()
    }
}

fn note(change: impl FnOnce(&mut DiskRecorder) -> Option<DiskChange>) {
    if let Some(recorder) = RECORDER.lock().as_mut()
        && let Some(change) = change(recorder)
    {
        recorder.changes.push(change);
    }
}

pub(crate) fn note_created(file: &File, path: &Path) {
    note(|recorder| {
        // One that has been there before keeps its number, and is emptied if it has no length now.
        match recorder.file(file) {
            Some(known) if recorder.has_name(known, path) => file
                .metadata()
                .is_ok_and(|found| found.len() == 0)
                .then_some(DiskChange::Emptied(known)),
            _ => {
                recorder.create(file, path);
                None
            }
        }
    });
}

impl DiskRecorder {
    /// Whether the file has this name now.
    fn has_name(&self, file: DiskFile, path: &Path) -> bool {
        let Some(name) = self.name(path) else {
            return false;
        };
        let mut present = None;
        for change in &self.changes {
            match change {
                DiskChange::Created(created, at) if *at == name => present = Some(*created),
                DiskChange::Removed(at) if *at == name => present = None,
                DiskChange::Renamed(from, _) if *from == name => present = None,
                _ => {}
            }
        }
        present == Some(file)
    }
}

/// How much of these bytes the disk takes.
pub(crate) fn allow_write(bytes: &[u8]) -> io::Result<&[u8]> {
    let mut recorder = RECORDER.lock();
    let Some(room) = recorder
        .as_mut()
        .and_then(|recorder| recorder.room.as_mut())
    else {
        return Ok(bytes);
    };
    if *room == 0 {
        return Err(rustix::io::Errno::NOSPC.into());
    }
    let taken = bytes.len().min(*room);
    *room -= taken;
    Ok(&bytes[..taken])
}

pub(crate) fn note_written(file: impl AsFd, bytes: &[u8], position: u64) {
    note(|recorder| {
        let file = recorder.file(file)?;
        Some(DiskChange::Written(file, position, bytes.to_vec()))
    });
}

pub(crate) fn note_len(file: impl AsFd, len: u64) {
    note(|recorder| Some(DiskChange::Resized(recorder.file(file)?, len)));
}

pub(crate) fn note_synced(file: impl AsFd) {
    note(|recorder| Some(DiskChange::Synced(recorder.file(file)?)));
}

pub(crate) fn note_directory_synced() {
    note(|_| Some(DiskChange::DirectorySynced));
}

pub(crate) fn note_renamed(from: &Path, to: &Path) {
    note(|recorder| {
        Some(DiskChange::Renamed(
            recorder.name(from)?,
            recorder.name(to)?,
        ))
    });
}

pub(crate) fn note_removed(path: &Path) {
    note(|recorder| Some(DiskChange::Removed(recorder.name(path)?)));
}
