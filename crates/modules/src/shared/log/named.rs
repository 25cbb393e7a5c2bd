//! `access_log` with variables in its path: a log for each user, site, day.
//!
//! Which file it is is known when the line is written, so the master can not have opened it, and opening may wait for
//! a disk. Lines go through a queue to a thread of the pool, which opens, writes and closes, or keeps the file open
//! when `open_log_file_cache` says so. The worker's user must be allowed to make the files.
//!
//! A log is not made for a request whose `root` folder does not exist: a client that invents host names must not fill
//! the disk with logs of sites that are not there.
//!
//! Who writes a line can wait for it: the next request of a connection, and its end, come after the line, as long as
//! the disk is not slow.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use bstr::ByteSlice;
use conf::Expression;
use rt::error_log::{Context, Errno, Holder, Level, LogFiles, Logger};
use rt::file::modes::{self, Wrong};
use rt::sync::remote_oneshot;

use super::batch::Batch;
use super::{OpenFiles, Subject, Written};

/// Files whose path has variables.
pub(crate) struct Named {
    path: Expression,
    /// What stands before every path; `None` when the text of the path begins with a slash.
    prefix: Option<PathBuf>,
    batch: Arc<Batch<Write1>>,
    lost: AtomicU64,
}

/// A line on its way to a file.
struct Write1 {
    path: PathBuf,
    line: Vec<u8>,
    required_folder: Option<PathBuf>,
    open_files: Option<Arc<OpenFiles>>,
    logger: Logger,
    connection: u64,
    /// Tells by its end that the line is written.
    _written: remote_oneshot::Sender<()>,
}

impl Named {
    pub(super) fn new(path: Expression, prefix: Option<PathBuf>, files: &LogFiles) -> Arc<Named> {
        let batch = Batch::new(Write1::run);
        let named = Arc::new(Named {
            path,
            prefix,
            batch,
            lost: AtomicU64::new(0),
        });
        let holder: Weak<Named> = Arc::downgrade(&named);
        files.add_holder(holder);
        named
    }

    /// Sends a line on its way; what is given back ends when the line is in its file, or lost.
    pub(super) fn write(
        &self,
        line: &[u8],
        subject: &mut dyn Subject,
        open_files: Option<&Arc<OpenFiles>>,
    ) -> Written {
        let (sender, written) = remote_oneshot::channel();
        let mut path = Vec::new();
        if let Some(prefix) = &self.prefix {
            path.extend_from_slice(prefix.as_os_str().as_encoded_bytes());
            path.push(b'/');
        }
        self.path.eval(subject, &mut path);
        let work = Write1 {
            path: path.to_path_lossy().into_owned(),
            line: line.to_vec(),
            required_folder: subject.required_folder(),
            open_files: open_files.cloned(),
            logger: subject.logger().clone(),
            connection: subject.connection(),
            _written: sender,
        };
        let bytes = work.line.len() + work.path.as_os_str().len();
        if let Err(work) = self.batch.add(bytes, work) {
            let lost = self.lost.fetch_add(1, Relaxed) + 1;
            // Powers of two: a log that is lost must not fill the other one.
            if lost.is_power_of_two() {
                let path = work.path.display();
                work.report(
                    Level::Error,
                    format_args!("{lost} lines of access logs such as \"{path}\" were lost"),
                );
            }
        }
        written
    }
}

impl Holder for Named {
    fn release(&self) {
        self.batch.empty();
    }
}

impl Write1 {
    fn run(self) {
        if let Some(folder) = &self.required_folder
            && let Err(error) = is_folder(folder)
        {
            let folder = folder.display();
            return self.report(
                Level::Error,
                format_args!("testing \"{folder}\" existence failed{}", Errno(&error)),
            );
        }
        let path = self.path.display();
        let tell =
            |wrong: Wrong| self.report(Level::Warn, format_args!("log file \"{path}\" {wrong}"));
        let opened = match &self.open_files {
            Some(files) => files.open(&self.path, &tell),
            None => open(&self.path, &tell).map(Arc::new),
        };
        match opened {
            Err(error) => self.report(
                Level::Crit,
                format_args!("open() \"{path}\" failed{}", Errno(&error)),
            ),
            Ok(file) => {
                if let Err(error) = (&*file).write_all(&self.line) {
                    self.report(
                        Level::Crit,
                        format_args!("write() to \"{path}\" failed{}", Errno(&error)),
                    );
                }
            }
        }
    }

    fn report(&self, level: Level, message: std::fmt::Arguments<'_>) {
        self.logger.log(level, self, message);
    }
}

impl Context for Write1 {
    fn connection(&self) -> Option<u64> {
        Some(self.connection)
    }

    fn describe(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b" while logging request");
    }
}

fn is_folder(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path)?.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Opens a log to append to, making it when it is not there; `tell` hears of one that other users could write to.
pub(super) fn open(path: &Path, tell: &dyn Fn(Wrong)) -> io::Result<File> {
    let opened = modes::append(path);
    let (file, wrong) = opened.inspect_err(|error| rt::sandbox::note_refusal(path, error))?;
    if let Some(wrong) = wrong {
        tell(wrong);
    }
    Ok(file)
}
