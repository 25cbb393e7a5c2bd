//! Opening and `stat`: on the loop's thread if the kernel has the path in memory, otherwise on a pool.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::mounts::device_of;
use super::{File, FileMetadata};
use crate::pool::PoolHandle;
use crate::report::{self, RuntimeEvent};

/// How to open a file. `OpenOptions::READ` is what serving needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
}

impl OpenOptions {
    /// Reading. Opening a FIFO does not wait for its writer (`O_NONBLOCK`, without effect on files).
    pub const READ: Self = Self::with(OFlags::RDONLY.union(OFlags::NONBLOCK));
    /// Writing.
    pub const WRITE: Self = Self::with(OFlags::WRONLY);
    /// Reading and writing.
    pub const READ_WRITE: Self = Self::with(OFlags::RDWR);
    /// Appending, the file made if need be.
    pub const APPEND: Self = Self::with(OFlags::WRONLY.union(OFlags::APPEND).union(OFlags::CREATE));
    /// Only a path: for `stat` and `open_at`.
    pub const PATH: Self = Self::with(OFlags::PATH);

    const fn with(flags: OFlags) -> Self {
        Self {
            flags: flags.union(OFlags::CLOEXEC),
            mode: Mode::from_raw_mode(0o644),
            resolve: ResolveFlags::empty(),
        }
    }

    const fn or(mut self, flags: OFlags) -> Self {
        self.flags = self.flags.union(flags);
        self
    }

    /// Fails with `ELOOP` when the last component is a symbolic link.
    #[must_use]
    pub const fn nofollow(self) -> Self {
        self.or(OFlags::NOFOLLOW)
    }

    /// Fails with `ENOTDIR` when it is not a directory.
    #[must_use]
    pub const fn directory(self) -> Self {
        self.or(OFlags::DIRECTORY)
    }

    /// Fails with `EXDEV` if the path, with its links followed, leads out of the starting directory.
    #[must_use]
    pub const fn beneath(mut self) -> Self {
        self.resolve = ResolveFlags::BENEATH;
        self
    }

    /// Makes the file if it is not there.
    #[must_use]
    pub const fn create(self) -> Self {
        self.or(OFlags::CREATE)
    }

    /// Makes the file; fails with `EEXIST` if it is there.
    #[must_use]
    pub const fn create_new(self) -> Self {
        self.or(OFlags::CREATE.union(OFlags::EXCL))
    }

    /// Empties the file.
    #[must_use]
    pub const fn truncate(self) -> Self {
        self.or(OFlags::TRUNC)
    }

    /// Reads and writes past the page cache: buffers and offsets must be aligned.
    #[must_use]
    pub const fn direct(self) -> Self {
        self.or(OFlags::DIRECT)
    }

    /// Permissions of a file that is made (0644 unless set; the umask applies).
    #[must_use]
    pub const fn mode(mut self, mode: u32) -> Self {
        self.mode = Mode::from_raw_mode(mode);
        self
    }

    /// Whether opening may change the disk, which the kernel never does in a nowait open.
    const fn changes(self) -> bool {
        self.flags.intersects(OFlags::CREATE.union(OFlags::TRUNC))
    }

    pub(super) const fn is_path(self) -> bool {
        self.flags.contains(OFlags::PATH)
    }

    fn mode_argument(self) -> Mode {
        // openat2 refuses a mode without O_CREAT.
        if self.flags.contains(OFlags::CREATE) {
            self.mode
        } else {
            Mode::empty()
        }
    }
}

/// Opens a file.
pub async fn open(path: &Path, options: OpenOptions, pool: &PoolHandle) -> io::Result<File> {
    if let Some(result) = open_cached(CWD, path, options) {
        return result
            .map(File::from_fd)
            .map_err(|error| denied_open_error(path, error));
    }
    let device = device_of(path, pool);
    let path = path.to_owned();
    let open =
        move || open_blocking(CWD, &path, options).map_err(|error| denied_open_error(&path, error));
    Ok(File::from_fd(pool.run_on(device, open).await?))
}

/// Reports a failed open to the sandbox's log, in case that is the cause.
pub(super) fn denied_open_error(path: &Path, error: rustix::io::Errno) -> io::Error {
    let error = io::Error::from(error);
    crate::sandbox::note_refusal(path, &error);
    error
}

/// Opens a file relative to an open directory. An absolute path ignores the directory.
pub async fn open_at(
    directory: &File,
    path: &Path,
    options: OpenOptions,
    pool: &PoolHandle,
) -> io::Result<File> {
    use std::os::fd::AsFd;
    if let Some(result) = open_cached(directory.as_fd(), path, options) {
        return result.map(File::from_fd).map_err(Into::into);
    }
    let device = if path.is_absolute() {
        device_of(path, pool)
    } else {
        directory.device()
    };
    let (path, below) = (path.to_owned(), directory.clone());
    let opened = pool
        .run_on(device, move || open_blocking(below.as_fd(), &path, options))
        .await?;
    Ok(File::from_fd(opened))
}

/// The metadata of a file, links followed.
pub async fn stat(path: &Path, pool: &PoolHandle) -> io::Result<FileMetadata> {
    stat_with(path, OpenOptions::PATH, AtFlags::empty(), pool).await
}

/// The metadata of a file, or of the link if it is one.
pub async fn lstat(path: &Path, pool: &PoolHandle) -> io::Result<FileMetadata> {
    stat_with(
        path,
        OpenOptions::PATH.nofollow(),
        AtFlags::SYMLINK_NOFOLLOW,
        pool,
    )
    .await
}

async fn stat_with(
    path: &Path,
    options: OpenOptions,
    flags: AtFlags,
    pool: &PoolHandle,
) -> io::Result<FileMetadata> {
    // Three calls (openat2, fstat, close), which together still cost a fifth of a trip to the pool. There is no
    // stat that does not block.
    match open_cached(CWD, path, options) {
        Some(Ok(fd)) => return Ok(FileMetadata::of(&rustix::fs::fstat(&fd)?)),
        Some(Err(error)) => return Err(error.into()),
        None => {}
    }
    let device = device_of(path, pool);
    let path = path.to_owned();
    let stat = pool
        .run_on(device, move || rustix::fs::statat(CWD, &path, flags))
        .await?;
    Ok(FileMetadata::of(&stat))
}

/// The result of an open that does not block; `None`: it has to be done on a pool.
pub(super) type CachedOpen = Option<rustix::io::Result<OwnedFd>>;

/// Opens a file without blocking; `None`: it has to be done on a pool, by [`open`].
pub fn try_open(path: &Path, options: OpenOptions) -> Option<io::Result<File>> {
    let opened = open_cached(CWD, path, options)?;
    Some(
        opened
            .map(File::from_fd)
            .map_err(|error| denied_open_error(path, error)),
    )
}

/// The metadata of a file, links followed, without blocking; `None`: it has to be done on a pool, by [`stat`].
pub fn try_stat(path: &Path) -> Option<io::Result<FileMetadata>> {
    let opened = open_cached(CWD, path, OpenOptions::PATH)?;
    let stat = opened.and_then(|fd| rustix::fs::fstat(&fd));
    Some(stat.map(|stat| FileMetadata::of(&stat)).map_err(Into::into))
}

/// A path with all symbolic links resolved, without blocking; `None`: it may have to be read from a device.
pub fn try_real_path(path: &Path) -> Option<io::Result<PathBuf>> {
    use std::os::fd::AsRawFd;
    let opened = match open_cached(CWD, path, OpenOptions::PATH)? {
        Ok(fd) => fd,
        Err(error) => return Some(Err(error.into())),
    };
    // /proc shows the path of an open file. Without /proc there is no such path.
    let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
    std::fs::read_link(link).ok().map(Ok)
}

/// [`open_blocking`] with the result of [`open_cached`], for code that is given either. It is always `Some`.
pub(super) fn open_waiting(
    directory: BorrowedFd<'_>,
    path: &Path,
    options: OpenOptions,
) -> CachedOpen {
    Some(open_blocking(directory, path, options))
}

/// Opens and blocks if necessary: for threads of a pool.
fn open_blocking(
    directory: BorrowedFd<'_>,
    path: &Path,
    options: OpenOptions,
) -> rustix::io::Result<OwnedFd> {
    let OpenOptions { flags, resolve, .. } = options;
    let mode = options.mode_argument();
    // Only where it is needed: a sandbox or an old kernel may refuse openat2.
    match resolve.is_empty() {
        true => rustix::fs::openat(directory, path, flags, mode),
        false => rustix::fs::openat2(directory, path, flags, mode, resolve),
    }
}

/// Tries to open without blocking.
pub(super) fn open_cached(
    directory: BorrowedFd<'_>,
    path: &Path,
    options: OpenOptions,
) -> CachedOpen {
    static REFUSED: AtomicBool = AtomicBool::new(false);
    if options.changes() || REFUSED.load(Relaxed) {
        return None;
    }
    loop {
        let opened = rustix::fs::openat2(
            directory,
            path,
            options.flags,
            options.mode_argument(),
            options.resolve.union(ResolveFlags::CACHED),
        );
        match opened {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return None,
            // EPERM is also a plain answer (a sealed file, O_NOATIME), so that it decides for this call
            // only, unless the same open on a file that is always there is refused too.
            Err(error @ (Errno::NOSYS | Errno::INVAL | Errno::PERM)) => {
                if is_refused() && !REFUSED.swap(true, Relaxed) {
                    report::report_event(&RuntimeEvent::Unsupported {
                        call: "openat2(RESOLVE_CACHED)",
                        error: &error.into(),
                        instead: "every open goes to a thread pool",
                    });
                }
                return None;
            }
            result => return Some(result),
        }
    }
}

fn is_refused() -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(CWD, c"/", flags, Mode::empty(), ResolveFlags::CACHED);
    matches!(opened, Err(Errno::NOSYS | Errno::INVAL | Errno::PERM))
}
