//! Opens a path while checking its symbolic links (`disable_symlinks`): none are allowed, or only those whose owner
//! also owns their target.
//!
//! The path is walked component by component, each opened relative to the one before, so that no directory can be
//! exchanged between the check and the opening. A path has at most `PATH_MAX / 2` components, which bounds the
//! walk. (`openat2(RESOLVE_NO_SYMLINKS)` does the first kind of check in one call, but it cannot exempt the
//! beginning of the path, and does not know the links' owners.)

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use super::mounts::device_of;
use super::open_path::{CachedOpen, OpenOptions, open_cached, open_waiting};
use super::{File, FileMetadata};
use crate::pool::PoolHandle;

/// Which links make opening fail with `ELOOP`, or with `ENOTDIR` if the link stands for a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymlinkPolicy {
    /// All.
    Refused,
    /// Those whose owner does not own their target.
    OwnersOnly,
    /// Those that lead out of the directory where checking begins, and all absolute ones.
    Outside,
}

/// How the links of a path are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SymlinkCheck {
    /// Which links fail.
    pub links: SymlinkPolicy,
    /// The length of the path's beginning that is not checked; what follows begins with a slash. 0 checks all of
    /// it.
    pub from: usize,
}

/// Opens a file without blocking; `None`: it has to be done on a pool, by [`open_judged`].
pub fn try_open_judged(
    path: &Path,
    options: OpenOptions,
    check: SymlinkCheck,
) -> Option<io::Result<File>> {
    match walk(path, options, check, open_cached) {
        Ok(fd) => Some(Ok(File::from_fd(fd))),
        Err(WalkStop::Wait) => None,
        Err(WalkStop::Error(error)) => Some(Err(error.into())),
    }
}

/// Opens a file and checks its links.
pub async fn open_judged(
    path: &Path,
    options: OpenOptions,
    check: SymlinkCheck,
    pool: &PoolHandle,
) -> io::Result<File> {
    if let Some(result) = try_open_judged(path, options, check) {
        return result;
    }
    let device = device_of(path, pool);
    let path: PathBuf = path.to_owned();
    let opened = pool
        .run_on(device, move || walk(&path, options, check, open_waiting))
        .await;
    match opened {
        Ok(fd) => Ok(File::from_fd(fd)),
        Err(WalkStop::Wait) => Err(io::ErrorKind::WouldBlock.into()),
        Err(WalkStop::Error(error)) => Err(error.into()),
    }
}

enum WalkStop {
    /// The kernel has not all of it in memory.
    Wait,
    Error(Errno),
}

type CachedOpener = fn(BorrowedFd<'_>, &Path, OpenOptions) -> CachedOpen;

fn walk(
    path: &Path,
    options: OpenOptions,
    check: SymlinkCheck,
    opener: CachedOpener,
) -> Result<OwnedFd, WalkStop> {
    use std::os::unix::ffi::OsStrExt;
    let text = path.as_os_str().as_bytes();
    let (start, rest) = match check.from {
        0 if text.first() == Some(&b'/') => (Some(&b"/"[..]), &text[1..]),
        0 => (None, text),
        from => (
            Some(&text[..from]),
            text.get(from + 1..).unwrap_or_default(),
        ),
    };
    let step = OpenOptions::PATH.directory();
    let mut at = match start {
        Some(start) => Some(outcome(opener(CWD, as_path(start), step))?),
        None => None,
    };
    if check.links == SymlinkPolicy::Outside {
        let below = at.as_ref().map_or(CWD, |fd| fd.as_fd());
        let inside: Vec<u8> = match rest.iter().all(|byte| *byte == b'/') {
            true => b".".to_vec(),
            // More slashes would make the rest an absolute path.
            false => rest
                .iter()
                .copied()
                .skip_while(|byte| *byte == b'/')
                .collect(),
        };
        return match outcome(opener(below, as_path(&inside), options.beneath())) {
            Err(WalkStop::Error(Errno::XDEV)) => Err(WalkStop::Error(Errno::LOOP)),
            result => result,
        };
    }
    let mut components = rest.split(|byte| *byte == b'/').peekable();
    let mut last = None;
    while let Some(component) = components.next() {
        if components.peek().is_none() {
            last = Some(component).filter(|name| !name.is_empty());
        } else if !component.is_empty() {
            let below = at.as_ref().map_or(CWD, |fd| fd.as_fd());
            at = Some(open_component(below, component, step, check.links, opener)?);
        }
    }
    let below = at.as_ref().map_or(CWD, |fd| fd.as_fd());
    match last {
        // The path ends with a slash: the directory itself, opened as asked for.
        None => outcome(opener(below, Path::new("."), options)),
        Some(name) => open_component(below, name, options, check.links, opener),
    }
}

fn open_component(
    below: BorrowedFd<'_>,
    name: &[u8],
    options: OpenOptions,
    links: SymlinkPolicy,
    opener: CachedOpener,
) -> Result<OwnedFd, WalkStop> {
    let path = as_path(name);
    if links == SymlinkPolicy::Refused {
        let fd = outcome(opener(below, path, options.nofollow()))?;
        // With O_PATH the link itself is opened.
        if options.is_path() && FileMetadata::of(&stat(&fd)?).kind == super::InodeKind::Symlink {
            return Err(WalkStop::Error(Errno::LOOP));
        }
        return Ok(fd);
    }
    let fd = outcome(opener(below, path, options))?;
    // Between the opening and this look the name may be exchanged; comparing owners is right whatever it is now.
    let found =
        rustix::fs::statat(below, path, AtFlags::SYMLINK_NOFOLLOW).map_err(WalkStop::Error)?;
    if stat(&fd)?.st_uid != found.st_uid {
        return Err(WalkStop::Error(Errno::LOOP));
    }
    Ok(fd)
}

fn stat(fd: &OwnedFd) -> Result<rustix::fs::Stat, WalkStop> {
    rustix::fs::fstat(fd).map_err(WalkStop::Error)
}

fn outcome(cached: CachedOpen) -> Result<OwnedFd, WalkStop> {
    match cached {
        None => Err(WalkStop::Wait),
        Some(Ok(fd)) => Ok(fd),
        Some(Err(error)) => Err(WalkStop::Error(error)),
    }
}

fn as_path(text: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: SymlinkCheck = SymlinkCheck {
        links: SymlinkPolicy::Refused,
        from: 0,
    };

    fn opens(path: &Path, check: SymlinkCheck) -> Result<(), Errno> {
        match walk(path, OpenOptions::READ, check, open_waiting) {
            Ok(_) => Ok(()),
            Err(WalkStop::Error(error)) => Err(error),
            Err(WalkStop::Wait) => Err(Errno::AGAIN),
        }
    }

    #[test]
    fn links_are_refused_from_where_judging_begins() {
        let root = std::env::temp_dir().join(format!("weir-links-{}", std::process::id()));
        let real = root.join("real");
        std::fs::create_dir_all(&real).expect("a fresh directory");
        let root = root.canonicalize().expect("it exists");
        std::fs::write(root.join("real/file"), "x").expect("written");
        let link = root.join("link");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink("real", &link).expect("linked");
        assert_eq!(opens(&root.join("real/file"), ALL), Ok(()));
        assert_eq!(opens(&root.join("real//file"), ALL), Ok(()));
        assert_eq!(opens(&root.join("real/"), ALL), Ok(()));
        assert_eq!(opens(&root.join("link/file"), ALL), Err(Errno::NOTDIR));
        assert_eq!(opens(&link, ALL), Err(Errno::LOOP));
        let from = SymlinkCheck {
            from: link.as_os_str().len(),
            ..ALL
        };
        assert_eq!(opens(&link.join("file"), from), Ok(()));
        let own = SymlinkCheck {
            links: SymlinkPolicy::OwnersOnly,
            from: 0,
        };
        assert_eq!(opens(&link.join("file"), own), Ok(()));
        assert_eq!(opens(&root.join("real/none"), own), Err(Errno::NOENT));
        std::fs::remove_dir_all(&root).expect("removed");
    }
}
