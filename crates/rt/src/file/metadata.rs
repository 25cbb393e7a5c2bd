//! The metadata of a file.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Stat};

use crate::pool::DeviceNumber;

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InodeKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link (only from `lstat` and directory listings).
    Symlink,
    /// A device, a pipe, a socket.
    Other,
}

impl InodeKind {
    pub(crate) fn of(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::Regular,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            _ => Self::Other,
        }
    }
}

/// The result of `stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMetadata {
    /// What sort of file it is.
    pub kind: InodeKind,
    /// Length in bytes.
    pub len: u64,
    /// Seconds of the last modification since the Unix epoch (before it: negative).
    pub mtime: i64,
    /// Nanoseconds of the last modification.
    pub mtime_nanos: u32,
    /// Seconds of the last change of the inode: of the content, but also of its name or permissions. Programs cannot set
    /// it.
    pub ctime: i64,
    /// Nanoseconds of that change.
    pub ctime_nanos: u32,
    /// Inode number.
    pub ino: u64,
    /// Device number.
    pub dev: u64,
    /// File type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes allocated on the disk.
    pub allocated: u64,
}

impl FileMetadata {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            kind: InodeKind::of(FileType::from_raw_mode(stat.st_mode)),
            len: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: stat.st_mtime,
            mtime_nanos: stat.st_mtime_nsec as u32,
            ctime: stat.st_ctime,
            ctime_nanos: stat.st_ctime_nsec as u32,
            ino: stat.st_ino,
            dev: stat.st_dev,
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            allocated: u64::try_from(stat.st_blocks).unwrap_or(0) * 512,
        }
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == InodeKind::Regular
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == InodeKind::Directory
    }

    /// The time of the last modification.
    pub fn modified(&self) -> SystemTime {
        let nanos = Duration::from_nanos(self.mtime_nanos.into());
        let seconds = Duration::from_secs(self.mtime.unsigned_abs());
        if self.mtime < 0 {
            UNIX_EPOCH - seconds + nanos
        } else {
            UNIX_EPOCH + seconds + nanos
        }
    }

    /// Its device, which selects the queue within a pool.
    pub fn device(&self) -> DeviceNumber {
        DeviceNumber(self.dev)
    }
}
