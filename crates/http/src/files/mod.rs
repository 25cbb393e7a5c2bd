//! Finds files for handlers, opened or only examined, with the settings of the location.
//!
//! Whatever the kernel or the cache of open files (`open_file_cache`) has in memory is answered at once by
//! [`try_open`]; the rest waits in the location's thread pool ([`open_request_file`]). `disable_symlinks`, `directio`,
//! `read_ahead` and `open_file_cache` take effect here. Which path belongs to a request, and what is done with the
//! file, is the handlers' business.

mod file_content;
mod open_file_cache;
mod symlinks;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use bstr::ByteSlice;
use bytes::Bytes;
use host::error_log::LogLevel;
use rt::file::{File, FileMetadata, OpenOptions, SymlinkCheck, errno};
use rt::pool::PoolHandle;

use crate::core::Aio;
use crate::core::delivery::{DeliveryConf, Directio};
use crate::request::Request;

/// A file that was found.
#[derive(Clone, Debug)]
pub struct OpenFile {
    /// The open file; `None` if it was only examined.
    pub file: Option<File>,
    /// What `stat` says of it.
    pub metadata: FileMetadata,
    /// Its content, if it is small and kept in memory.
    pub content: Option<Bytes>,
}

/// Why a file cannot be opened or examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileError {
    /// The error number.
    pub errno: i32,
    /// The call that failed, as the log names it: `open()`.
    pub call: &'static str,
}

/// What a file is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePurpose {
    /// To read it.
    Read,
    /// To know whether it exists, and what it is.
    Look,
}

/// The result of opening or examining a file.
pub type OpenFileResult = Result<OpenFile, FileError>;

/// Below this size the call that asks for more read-ahead is not worth its cost, in bytes.
const READ_AHEAD_FROM: u64 = 128 * 1024;

/// Finds a file without waiting. `None` if that might have to wait for a device: then call [`open_request_file`].
pub fn try_open(
    request: &mut Request,
    path: &[u8],
    purpose: FilePurpose,
) -> Option<OpenFileResult> {
    request.debug(format_args!("http filename: \"{}\"", path.as_bstr()));
    let site = Rc::clone(&request.site);
    let delivery = &site.location(request.location).core.delivery;
    let judged = symlinks::symlink_check(request, delivery, path);
    let Some(settings) = delivery.open_file_cache else {
        return probe(delivery, path, judged, purpose);
    };
    match open_file_cache::lookup_file(settings, delivery, path, judged, purpose) {
        open_file_cache::OpenFileLookup::Hit(found) => return Some(found),
        // One `stat` revalidates an old entry and saves opening the file again. With `disable_symlinks` every part of
        // the path would have to be judged again, which is what opening it does.
        open_file_cache::OpenFileLookup::Aged(old) if judged.is_none() => {
            let now = rt::file::try_stat(as_path(path))?;
            if now.is_ok_and(|now| old.is_still(&now)) {
                open_file_cache::mark_checked(settings, path);
                return Some(Ok(old));
            }
        }
        open_file_cache::OpenFileLookup::Aged(_) | open_file_cache::OpenFileLookup::Miss => {}
    }
    let found = probe(delivery, path, judged, purpose)?;
    open_file_cache::store_entry(settings, delivery, path, judged, &found);
    Some(found)
}

/// Finds a file, with the help of the location's pool if it is not in memory.
pub async fn open_request_file(
    request: &mut Request,
    path: &[u8],
    purpose: FilePurpose,
) -> OpenFileResult {
    match try_open(request, path, purpose) {
        Some(found) => found,
        None => open_waiting(request, path, purpose).await,
    }
}

/// Finds a file on the location's pool, after [`try_open`] could not answer.
pub async fn open_waiting(
    request: &mut Request,
    path: &[u8],
    purpose: FilePurpose,
) -> OpenFileResult {
    let site = Rc::clone(&request.site);
    let delivery = &site.location(request.location).core.delivery;
    let pool = file_pool(request, &delivery.aio);
    let judged = symlinks::symlink_check(request, delivery, path);
    let found = match (judged, purpose) {
        (None, FilePurpose::Look) => {
            let metadata = rt::file::stat(as_path(path), &pool).await;
            metadata
                .map(OpenFile::looked_at)
                .map_err(|error| FileError::of(&error, "stat()"))
        }
        (None, FilePurpose::Read) => {
            let opened = rt::file::open(as_path(path), OpenOptions::READ, &pool).await;
            opened
                .and_then(|file| opened_with(delivery, file))
                .map_err(|error| FileError::of(&error, "open()"))
        }
        (Some(judged), purpose) => {
            let opened =
                rt::file::open_judged(as_path(path), options(purpose), judged, &pool).await;
            finish_judged(delivery, opened, purpose)
        }
    };
    if let Some(settings) = delivery.open_file_cache {
        open_file_cache::store_entry(settings, delivery, path, judged, &found);
    }
    found
}

/// The thread pool for this request's blocking calls (`aio threads=`). A name that no `thread_pool` has is logged, and
/// means the default pool.
pub fn file_pool(request: &mut Request, aio: &Aio) -> PoolHandle {
    let Aio::Pool(name) = aio else {
        return rt::pool::default_pool();
    };
    let name = request.value(name);
    match name.to_str().ok().and_then(rt::pool::get) {
        Some(pool) => pool,
        None => {
            request.error(format_args!("thread pool \"{name}\" not found"));
            rt::pool::default_pool()
        }
    }
}

/// Logs why the file of a request cannot be read, and returns the status for the client.
pub fn refuse_file(request: &Request, path: &[u8], error: FileError) -> u16 {
    let status = error.status();
    let log_not_found = request.site.location(request.location).core.log_not_found;
    // `log_not_found off` silences missing files only: other errors point to a wrong configuration or a failing disk.
    if status != 404 || log_not_found {
        let level = if status == 500 {
            LogLevel::Crit
        } else {
            LogLevel::Error
        };
        request.log(
            level,
            format_args!("{} \"{}\" failed{}", error.call, path.as_bstr(), error),
        );
    }
    status
}

/// The bytes of a path as a [`Path`].
pub fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// Opens or examines a file without waiting; `None` if the kernel cannot answer from memory.
fn probe(
    delivery: &DeliveryConf,
    path: &[u8],
    check: Option<SymlinkCheck>,
    purpose: FilePurpose,
) -> Option<OpenFileResult> {
    let path = as_path(path);
    Some(match (check, purpose) {
        (None, FilePurpose::Look) => {
            let metadata = rt::file::try_stat(path)?;
            metadata
                .map(OpenFile::looked_at)
                .map_err(|error| FileError::of(&error, "stat()"))
        }
        (None, FilePurpose::Read) => {
            let opened = rt::file::try_open(path, OpenOptions::READ)?;
            opened
                .and_then(|file| opened_with(delivery, file))
                .map_err(|error| FileError::of(&error, "open()"))
        }
        (Some(check), purpose) => {
            let opened = rt::file::try_open_judged(path, options(purpose), check)?;
            finish_judged(delivery, opened, purpose)
        }
    })
}

fn options(purpose: FilePurpose) -> OpenOptions {
    match purpose {
        FilePurpose::Read => OpenOptions::READ,
        FilePurpose::Look => OpenOptions::PATH,
    }
}

/// Completes the result of opening a path under `disable_symlinks`.
fn finish_judged(
    delivery: &DeliveryConf,
    opened: io::Result<File>,
    purpose: FilePurpose,
) -> OpenFileResult {
    let found = opened.and_then(|file| match purpose {
        FilePurpose::Read => opened_with(delivery, file),
        FilePurpose::Look => file.metadata().map(OpenFile::looked_at),
    });
    found.map_err(|error| FileError::of(&error, "openat()"))
}

/// Examines a file that was just opened, and applies the location's settings for reading it. From the descriptor, not
/// the path: the path may name another file by now.
fn opened_with(delivery: &DeliveryConf, file: File) -> io::Result<OpenFile> {
    let metadata = file.metadata()?;
    if metadata.is_file() {
        if let Directio::From(length) = delivery.directio
            && metadata.len >= length
        {
            // If the file system has no direct I/O the ordinary reads serve as well.
            let _ = file.set_direct();
        }
        if delivery.read_ahead > 0 && metadata.len >= READ_AHEAD_FROM {
            file.read_sequentially();
        }
    }
    Ok(OpenFile {
        file: Some(file),
        metadata,
        content: None,
    })
}

impl OpenFile {
    fn looked_at(metadata: FileMetadata) -> OpenFile {
        OpenFile {
            file: None,
            metadata,
            content: None,
        }
    }

    /// Whether the path still names this very file, unchanged.
    fn is_still(&self, now: &FileMetadata) -> bool {
        let was = &self.metadata;
        let identity = |of: &FileMetadata| (of.dev, of.ino, of.len, of.mtime, of.mtime_nanos);
        identity(was) == identity(now)
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.metadata.is_file()
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.metadata.is_directory()
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.metadata.len
    }

    /// The time of its last change, in seconds since 1970.
    pub fn modified(&self) -> i64 {
        self.metadata.mtime
    }
}

impl FileError {
    fn of(error: &io::Error, call: &'static str) -> FileError {
        FileError {
            errno: error.raw_os_error().unwrap_or(errno::IO),
            call,
        }
    }

    /// The status for the client: 404 for what does not exist, 403 for what must not be read, otherwise 500; as in
    /// nginx.
    pub fn status(self) -> u16 {
        match self.errno {
            errno::NOENT | errno::NOTDIR | errno::NAMETOOLONG => 404,
            errno::ACCES | errno::MLINK | errno::LOOP => 403,
            _ => 500,
        }
    }

    /// Whether `disable_symlinks` refused a link in the path.
    pub fn is_link(self) -> bool {
        matches!(self.errno, errno::MLINK | errno::LOOP)
    }
}

/// As the error log shows it, with a space in front: ` (2: No such file or directory)`.
impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = io::Error::from_raw_os_error(self.errno);
        write!(f, " {}", base::text::errno_text(&error))
    }
}
