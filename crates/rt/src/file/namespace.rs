//! Operations on names: listing, renaming, removing, creating directories. All of them run on a pool.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Timespec, Timestamps};

use super::InodeKind;
use super::mounts::device_of;
use crate::pool::PoolHandle;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name, without the directory.
    pub name: OsString,
    /// What sort of file; `None` when the file system does not say.
    pub kind: Option<InodeKind>,
}

/// The names in a directory but `.` and `..`, in the file system's order, at most `limit` of them.
pub async fn read_directory(
    path: &Path,
    limit: usize,
    pool: &PoolHandle,
) -> io::Result<Vec<DirectoryEntry>> {
    let device = device_of(path, pool);
    let path = path.to_owned();
    pool.run_on(device, move || {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, &path, flags, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in Dir::new(fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if entries.len() == limit {
                break;
            }
            let kind = entry.file_type();
            entries.push(DirectoryEntry {
                name: OsStr::from_bytes(name).to_owned(),
                kind: (kind != rustix::fs::FileType::Unknown).then(|| InodeKind::of(kind)),
            });
        }
        Ok(entries)
    })
    .await
}

/// Renames; what was at `to` is replaced.
pub async fn rename(from: &Path, to: &Path, pool: &PoolHandle) -> io::Result<()> {
    let device = device_of(to, pool);
    let (from, to) = (from.to_owned(), to.to_owned());
    pool.run_on(device, move || {
        Ok(rustix::fs::renameat(CWD, &from, CWD, &to)?)
    })
    .await
}

/// Removes a file's name.
pub async fn remove_file(path: &Path, pool: &PoolHandle) -> io::Result<()> {
    remove(path, AtFlags::empty(), pool).await
}

/// Removes an empty directory.
pub async fn remove_directory(path: &Path, pool: &PoolHandle) -> io::Result<()> {
    remove(path, AtFlags::REMOVEDIR, pool).await
}

async fn remove(path: &Path, flags: AtFlags, pool: &PoolHandle) -> io::Result<()> {
    let device = device_of(path, pool);
    let path = path.to_owned();
    pool.run_on(device, move || Ok(rustix::fs::unlinkat(CWD, &path, flags)?))
        .await
}

/// Makes a directory, with `mode` (the umask applies).
pub async fn create_directory(path: &Path, mode: u32, pool: &PoolHandle) -> io::Result<()> {
    let device = device_of(path, pool);
    let path = path.to_owned();
    pool.run_on(device, move || {
        Ok(rustix::fs::mkdirat(CWD, &path, Mode::from_raw_mode(mode))?)
    })
    .await
}

/// Where a symbolic link points.
pub async fn read_link(path: &Path, pool: &PoolHandle) -> io::Result<PathBuf> {
    let device = device_of(path, pool);
    let path = path.to_owned();
    pool.run_on(device, move || {
        let target = rustix::fs::readlinkat(CWD, &path, Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    })
    .await
}

/// Sets the time of the last modification, and of the last access to the same.
pub async fn set_times(path: &Path, modified: SystemTime, pool: &PoolHandle) -> io::Result<()> {
    let device = device_of(path, pool);
    let path = path.to_owned();
    let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = Timespec {
        tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: since.subsec_nanos().into(),
    };
    pool.run_on(device, move || {
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        Ok(rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())?)
    })
    .await
}
