//! `access_log` with variables in its path: a log per user, per site, per day.
//!
//! The file is known only when the line is written, so the master cannot have opened it, and
//! opening may block on a disk. Lines go through a queue to a pool thread that opens the file,
//! writes and closes it, or keeps it open if `open_log_file_cache` says so. The worker's user needs
//! permission to create the files.
//!
//! No log is created for a request whose `root` does not exist: otherwise a client that invents
//! host names could fill the disk with logs of sites that are not there.
//!
//! The writer of a line can wait for it: the next request on the connection, and its end, come
//! after the line, unless the disk is slow.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use base::ErrnoText;
use bstr::ByteSlice;
use conf::Expression;
use host::error_log::{ContextWriter, LineBuffer, LogContext, LogFiles, LogLevel, Logger};
use rt::file::modes::{self, PermissiveMode};
use rt::sync::remote_oneshot;

use super::ordered_work::OrderedWork;
use super::{LineWritten, LogSubject, OpenLogFiles};

/// A log whose path has variables.
pub(crate) struct VariableLog {
    path: Expression,
    /// Prepended to every path; `None` if the text of the path begins with a slash.
    prefix: Option<PathBuf>,
    batch: Arc<OrderedWork<LogWrite>>,
    /// Lines refused by the full queue.
    lost: AtomicU64,
}

/// A line on its way to a file, with what a pool thread needs to write it.
struct LogWrite {
    path: PathBuf,
    line: Vec<u8>,
    required_folder: Option<PathBuf>,
    open_files: Option<Arc<OpenLogFiles>>,
    logger: Logger,
    /// For messages about a write that failed.
    connection: u64,
    /// Dropped when the line is written or lost, which completes the receiver.
    _written: remote_oneshot::RemoteSender<()>,
}

impl VariableLog {
    /// A log whose path is evaluated per line. The list of log files knows it, so that nothing is
    /// lost at the end.
    pub(super) fn new(
        path: Expression,
        prefix: Option<PathBuf>,
        files: &LogFiles,
    ) -> Arc<VariableLog> {
        let batch = OrderedWork::new(LogWrite::run);
        let named = Arc::new(VariableLog {
            path,
            prefix,
            batch,
            lost: AtomicU64::new(0),
        });
        let buffer: Weak<VariableLog> = Arc::downgrade(&named);
        files.add_buffer(buffer);
        named
    }

    /// Queues a line. The result completes when the line has been written or lost.
    pub(super) fn write(
        &self,
        line: &[u8],
        subject: &mut dyn LogSubject,
        open_files: Option<&Arc<OpenLogFiles>>,
    ) -> LineWritten {
        let (sender, written) = remote_oneshot::channel();
        let mut path = Vec::new();
        if let Some(prefix) = &self.prefix {
            path.extend_from_slice(prefix.as_os_str().as_encoded_bytes());
            path.push(b'/');
        }
        self.path.eval(subject, &mut path);
        let work = LogWrite {
            path: path.to_path_lossy().into_owned(),
            line: line.to_vec(),
            required_folder: subject.required_folder(),
            open_files: open_files.cloned(),
            logger: subject.logger().clone(),
            connection: subject.connection(),
            _written: sender,
        };
        let bytes = work.line.len() + work.path.as_os_str().len();
        if let Err(work) = self.batch.push(bytes, work) {
            let lost = self.lost.fetch_add(1, Relaxed) + 1;
            // Reported at powers of two, so that a failing access log does not flood the error log.
            if lost.is_power_of_two() {
                let path = work.path.display();
                work.report(
                    LogLevel::Error,
                    format_args!("{lost} lines of access logs such as \"{path}\" were lost"),
                );
            }
        }
        written
    }
}

impl LineBuffer for VariableLog {
    fn flush_lines(&self) {
        self.batch.drain();
    }
}

impl LogWrite {
    /// Opens the file and writes the line, on a pool thread.
    fn run(self) {
        if let Some(folder) = &self.required_folder
            && let Err(error) = is_folder(folder)
        {
            let folder = folder.display();
            return self.report(
                LogLevel::Error,
                format_args!("testing \"{folder}\" existence failed{}", ErrnoText(&error)),
            );
        }
        let path = self.path.display();
        let tell = |wrong: PermissiveMode| {
            self.report(LogLevel::Warn, format_args!("log file \"{path}\" {wrong}"))
        };
        let opened = match &self.open_files {
            Some(files) => files.open(&self.path, &tell),
            None => open(&self.path, &tell).map(Arc::new),
        };
        match opened {
            Err(error) => self.report(
                LogLevel::Crit,
                format_args!("open() \"{path}\" failed{}", ErrnoText(&error)),
            ),
            Ok(file) => {
                if let Err(error) = (&*file).write_all(&self.line) {
                    self.report(
                        LogLevel::Crit,
                        format_args!("write() to \"{path}\" failed{}", ErrnoText(&error)),
                    );
                }
            }
        }
    }

    /// Logs a failure with the connection that the line was about.
    fn report(&self, level: LogLevel, message: std::fmt::Arguments<'_>) {
        self.logger.log(level, self, message);
    }
}

impl LogContext for LogWrite {
    fn connection(&self) -> Option<u64> {
        Some(self.connection)
    }

    fn describe(&self, out: &mut ContextWriter<'_>) {
        out.doing("logging request");
    }
}

/// Fails unless the path is a directory.
fn is_folder(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path)?.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Opens a log for appending and creates it if necessary. `tell` is called for one that other users
/// can write to.
pub(super) fn open(path: &Path, tell: &dyn Fn(PermissiveMode)) -> io::Result<File> {
    let opened = modes::open_to_append(path);
    let (file, wrong) = opened.inspect_err(|error| rt::sandbox::note_refusal(path, error))?;
    if let Some(wrong) = wrong {
        tell(wrong);
    }
    Ok(file)
}
