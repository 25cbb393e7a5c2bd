//! Temporary files, for content that does not fit into memory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::File;
use super::mounts::device_of;
use crate::pool::PoolHandle;

/// Whether a temporary file has a name after it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemporaryName {
    /// It has none: the file disappears with its last handle, even if the process is killed.
    Removed,
    /// It stays until it is removed.
    Kept,
}

/// How many names are tried: if all exist, another process fills the directory with such names.
const ATTEMPTS: usize = 100;

/// Creates a new file in `directory` for reading and writing, on the pool. The returned path leads to it only if
/// the name was kept.
pub async fn create_temporary(
    directory: &Path,
    name: TemporaryName,
    pool: &PoolHandle,
) -> io::Result<(File, PathBuf)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let device = device_of(directory, pool);
    let directory = directory.to_owned();
    pool.run_on(device, move || {
        for _ in 0..ATTEMPTS {
            let number = NUMBER.fetch_add(1, Relaxed);
            // The process number is part of the name, because each process counts from the beginning.
            let path = directory.join(format!("{:05}{number:010}", std::process::id()));
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            match rustix::fs::openat(CWD, &path, flags, Mode::from_raw_mode(0o600)) {
                Err(Errno::EXIST) => {}
                Err(error) => return Err(super::open_path::denied_open_error(&path, error)),
                Ok(fd) => {
                    if name == TemporaryName::Removed {
                        rustix::fs::unlinkat(CWD, &path, AtFlags::empty())?;
                    }
                    return Ok((File::from_fd(fd), path));
                }
            }
        }
        Err(Errno::EXIST.into())
    })
    .await
}
