//! Files with users and their passwords: `auth_basic_user_file` and `auth_digest_user_file`.
//!
//! Such a file belongs to the running server, not to its configuration: the worker reads it, and reads it again after
//! it has changed, so that a new password counts at once. No loop waits for it: whether it has changed is answered
//! from the kernel's memory first, and it is read and parsed on a thread of the pool.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;

use base::ErrnoText;
use host::error_log::LogLevel;
use http::{HandlerOutcome, Request};
use rt::file::FileMetadata;

/// The maximum size of a file, in bytes: each loop keeps it in memory.
const MAX_FILE: u64 = 64 << 20;

/// How many files of a kind each loop remembers.
pub(crate) const USER_FILES_KEPT: usize = 64;

/// What changes when a file is written or replaced, or when we lose access to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileVersion {
    /// Seconds and nanoseconds: a file can change twice within a second.
    modified: (i64, u32),
    length: u64,
    /// Device and inode: a file that was replaced can have the same times.
    identity: (u64, u64),
    /// Mode, owner and group: a file that became unreadable must not stay in use.
    rights: (u32, u32, u32),
}

impl FileVersion {
    fn of(metadata: &FileMetadata) -> FileVersion {
        FileVersion {
            modified: (metadata.mtime, metadata.mtime_nanos),
            length: metadata.len,
            identity: (metadata.dev, metadata.ino),
            rights: (metadata.mode, metadata.uid, metadata.gid),
        }
    }
}

/// The contents of a file.
pub(crate) enum UserFileContent<T> {
    /// What the caller knew is current.
    Known(Rc<T>),
    /// Read just now, for the caller to keep.
    Fresh(Rc<T>),
}

/// The current contents of a file. It is read only if `known` has nothing for its version.
pub(crate) async fn load<T: Send + 'static>(
    path: &Path,
    known: impl FnOnce(FileVersion) -> Option<Rc<T>>,
    parse: fn(&[u8], FileVersion) -> T,
) -> io::Result<UserFileContent<T>> {
    let pool = rt::pool::default_pool();
    let metadata = rt::file::stat(path, &pool).await?;
    let version = FileVersion::of(&metadata);
    if let Some(content) = known(version) {
        return Ok(UserFileContent::Known(content));
    }
    if metadata.len > MAX_FILE {
        return Err(io::Error::other(
            "a password file must not exceed 64 megabytes",
        ));
    }
    let owned = path.to_owned();
    let read = move || {
        // The version was taken before the file was read: if it changes in between, the old version is stored with
        // the new text, and the next request reads again.
        let text = std::fs::read(&owned);
        text.inspect_err(|error| rt::sandbox::note_refusal(&owned, error))
            .map(|text| parse(&text, version))
    };
    Ok(UserFileContent::Fresh(Rc::new(pool.run(read).await?)))
}

/// The response without a readable file. With a missing file all clients are refused, as in nginx; other errors are
/// the server's fault.
pub(crate) fn refuse_without_file(
    request: &Request,
    path: &Path,
    error: &io::Error,
) -> HandlerOutcome {
    let (level, status) = match error.kind() {
        io::ErrorKind::NotFound => (LogLevel::Error, 403),
        _ => (LogLevel::Crit, 500),
    };
    request.log(
        level,
        format_args!("open() \"{}\" failed{}", path.display(), ErrnoText(error)),
    );
    HandlerOutcome::Status(status)
}

/// The address that a client's attempts are counted under; of IPv6, the network of 64 bits that a client has to itself.
pub(crate) fn attempt_address(request: &Request) -> Vec<u8> {
    match request.remote.address.ip() {
        Some(IpAddr::V4(address)) => address.octets().to_vec(),
        Some(IpAddr::V6(address)) => address.octets()[..8].to_vec(),
        None => Vec::new(),
    }
}
