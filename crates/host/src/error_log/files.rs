//! Append-only log files, by path.
//!
//! Who opens them and who writes them are two processes. The master reads the configuration, learns
//! from [`LogFiles::all_paths`] which paths it names, and opens them with its own rights. The worker
//! receives the descriptors and attaches them before it builds its configuration. A reopen (USR1)
//! attaches another descriptor to the same [`LogFile`], and its users do not notice.
//!
//! This module opens nothing, and it drops a line rather than wait for a disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::Syslog;
use crate::log_sink::LogSink;
use base::sync::Mutex;

/// The name that stands for the standard error stream.
pub(super) const STDERR: &str = "/dev/stderr";

/// How long the end of the process waits for its logs: enough for a slow disk and full buffers.
const FLUSH_TIME: Duration = Duration::from_secs(10);

/// How a descriptor is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogWriteMode {
    /// By the calling thread. For the master, which must have no second thread when it forks.
    Direct,
    /// By the writer thread of a [`LogSink`]. For the worker, whose loops must not wait.
    Queued,
}

/// Something above the files that holds lines back, such as `access_log … buffer=`.
pub trait LineBuffer: Send + Sync {
    /// Writes what is held. Returns when all of it is with the files; may be slow, so not for loops.
    fn flush_lines(&self);
}

/// The files of a process by path. Clones are handles to the same set.
#[derive(Clone, Default)]
pub struct LogFiles {
    by_path: Arc<Mutex<BTreeMap<PathBuf, Arc<LogFile>>>>,
    /// Those that write to files which are not in this set.
    buffers: Arc<Mutex<LineBuffers>>,
    /// The files that were asked for since [`LogFiles::take_asked`].
    asked: Arc<Mutex<Vec<Arc<LogFile>>>>,
}

/// Buffers that may be gone by now.
#[derive(Default)]
struct LineBuffers(Vec<Weak<dyn LineBuffer>>);

impl LineBuffers {
    fn add(&mut self, buffer: Weak<dyn LineBuffer>) {
        self.0.retain(|known| known.strong_count() > 0);
        self.0.push(buffer);
    }
}

/// Has every buffer write its lines. The list is not locked meanwhile: a buffer may be slow.
fn release(buffers: &Mutex<LineBuffers>) {
    let list = buffers.lock().0.clone();
    for buffer in list.iter().filter_map(Weak::upgrade) {
        buffer.flush_lines();
    }
}

impl LogFiles {
    /// The file of this path. The same path always gives the same file; nothing is opened here.
    pub fn file_for_path(&self, path: &Path) -> Arc<LogFile> {
        let file = self.find_or_add(path);
        let mut asked = self.asked.lock();
        if !asked.iter().any(|known| Arc::ptr_eq(known, &file)) {
            asked.push(file.clone());
        }
        file
    }

    /// The files that were asked for since this was last called: those that a server names, while it is read.
    pub fn take_asked(&self) -> Vec<Arc<LogFile>> {
        std::mem::take(&mut *self.asked.lock())
    }

    fn find_or_add(&self, path: &Path) -> Arc<LogFile> {
        let mut files = self.by_path.lock();
        if let Some(file) = files.get(path) {
            return file.clone();
        }
        let file = Arc::new(LogFile {
            path: path.to_path_buf(),
            writer: OnceLock::new(),
            buffers: Mutex::default(),
        });
        files.insert(path.to_path_buf(), file.clone());
        file
    }

    /// Every path asked for, in order.
    pub fn all_paths(&self) -> Vec<PathBuf> {
        self.by_path.lock().keys().cloned().collect()
    }

    /// Every file, in the order of paths.
    pub fn all_files(&self) -> Vec<Arc<LogFile>> {
        self.by_path.lock().values().cloned().collect()
    }

    /// Writes `path` to `descriptor` from now on: the first descriptor, or the one after a reopen.
    pub fn attach(&self, path: &Path, descriptor: OwnedFd, how: LogWriteMode) {
        self.find_or_add(path).attach(descriptor, how);
    }

    /// Drops files that a reload no longer names.
    pub fn prune_unused(&self) {
        self.take_asked();
        let mut files = self.by_path.lock();
        files.retain(|_, file| Arc::strong_count(file) > 1);
    }

    /// A syslog server whose lines [`LogFiles::flush`] waits for.
    pub fn keep_syslog(&self, syslog: Syslog) -> Arc<Syslog> {
        let syslog = Arc::new(syslog);
        let buffer: Weak<Syslog> = Arc::downgrade(&syslog);
        self.add_buffer(buffer);
        syslog
    }

    /// Has `buffer` asked at [`LogFiles::flush`] too.
    pub fn add_buffer(&self, buffer: Weak<dyn LineBuffer>) {
        self.buffers.lock().add(buffer);
    }

    /// Waits until everything written so far has left the process. For the end of the process, which a pipe that nobody
    /// empties must not prevent.
    pub fn flush(&self) {
        release(&self.buffers);
        let end = rt::clock::read_clock() + FLUSH_TIME;
        for file in self.all_files() {
            release(&file.buffers);
            if let Some(LogFileWriter::Queued(sink)) = file.writer.get() {
                let left = end.saturating_duration_since(rt::clock::read_clock());
                // What is not written by then is lost, and there is nowhere left to say so.
                let _ = sink.flush_within(left);
            }
        }
    }
}

/// One append-only file.
pub struct LogFile {
    path: PathBuf,
    /// Unset until a descriptor is attached; lines before that are dropped, which only `-t` does.
    writer: OnceLock<LogFileWriter>,
    buffers: Mutex<LineBuffers>,
}

enum LogFileWriter {
    Direct(Mutex<File>),
    Queued(LogSink),
}

impl LogFile {
    /// The file's path; `/dev/stderr` and `/dev/stdout` stand for the process's own streams.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Is this the standard error stream?
    pub fn is_stderr(&self) -> bool {
        self.path == Path::new(STDERR)
    }

    /// Appends whole lines. Never waits for a disk when the file is attached as [`LogWriteMode::Queued`].
    pub fn write(&self, lines: &[u8]) {
        self.write_by(lines, LogSink::write);
    }

    /// As [`LogFile::write`], for rare lines that are wanted in the file without delay.
    pub fn write_now(&self, lines: &[u8]) {
        self.write_by(lines, LogSink::write_now);
    }

    /// Ends when all that was written so far has left the process; `None` when it has already.
    pub fn flushed_receiver(&self) -> Option<rt::sync::remote_oneshot::RemoteReceiver<()>> {
        match self.writer.get()? {
            LogFileWriter::Queued(sink) => sink.flushed_receiver(),
            LogFileWriter::Direct(_) => None,
        }
    }

    fn write_by(&self, lines: &[u8], write: fn(&LogSink, &[u8])) {
        match self.writer.get() {
            Some(LogFileWriter::Queued(sink)) => write(sink, lines),
            Some(LogFileWriter::Direct(file)) => {
                let mut file = file.lock();
                // There is nowhere to report that a log cannot be written.
                let _ = file.write_all(lines);
            }
            None => {}
        }
    }

    /// Has `buffer` asked for its lines before this file is reopened, and at the end of the process.
    pub fn add_buffer(&self, buffer: Weak<dyn LineBuffer>) {
        self.buffers.lock().add(buffer);
    }

    fn attach(&self, descriptor: OwnedFd, how: LogWriteMode) {
        // Lines of before belong to the old file.
        release(&self.buffers);
        let mut fresh = Some(descriptor);
        let writer = self.writer.get_or_init(|| {
            let descriptor = fresh.take().expect("the closure runs at most once");
            match how {
                LogWriteMode::Direct => LogFileWriter::Direct(Mutex::new(File::from(descriptor))),
                LogWriteMode::Queued => {
                    LogFileWriter::Queued(LogSink::file(&self.path.to_string_lossy(), descriptor))
                }
            }
        });
        let Some(descriptor) = fresh else { return };
        match writer {
            LogFileWriter::Direct(file) => *file.lock() = File::from(descriptor),
            LogFileWriter::Queued(sink) => sink.reopen(descriptor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_path_is_one_file() {
        let files = LogFiles::default();
        let first = files.file_for_path(Path::new("/a"));
        assert!(Arc::ptr_eq(
            &first,
            &files.clone().file_for_path(Path::new("/a"))
        ));
        assert_eq!(files.all_paths(), [PathBuf::from("/a")]);
        drop(first);
        files.prune_unused();
        assert!(files.all_paths().is_empty());
    }
}
