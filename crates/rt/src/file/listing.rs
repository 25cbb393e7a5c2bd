//! Lists a directory with the metadata of each file, in one job of a pool.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::FileMetadata;
use crate::pool::{DeviceNumber, PoolHandle};

/// A name in a directory and what is behind it.
#[derive(Debug)]
pub struct ListedFile {
    /// The name, without the directory.
    pub name: OsString,
    /// The metadata of the file, links followed; of the link itself if it leads nowhere.
    pub metadata: io::Result<FileMetadata>,
}

/// The files in a directory but `.` and `..`, in the file system's order, at most `limit` of them.
pub async fn list_directory(
    path: &Path,
    limit: usize,
    pool: &PoolHandle,
) -> io::Result<Vec<ListedFile>> {
    let path = path.to_owned();
    pool.run_on(DeviceNumber::UNKNOWN, move || {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, &path, flags, Mode::empty())
            .map_err(|error| super::open_path::denied_open_error(&path, error))?;
        let mut listed = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if listed.len() == limit {
                break;
            }
            let stat = match rustix::fs::statat(&directory, name, AtFlags::empty()) {
                Err(Errno::NOENT | Errno::LOOP) => {
                    rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)
                }
                stat => stat,
            };
            listed.push(ListedFile {
                name: OsStr::from_bytes(name.to_bytes()).to_owned(),
                metadata: stat.map(|stat| FileMetadata::of(&stat)).map_err(Into::into),
            });
        }
        Ok(listed)
    })
    .await
}
