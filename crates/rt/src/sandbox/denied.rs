//! Files that Landlock does not let the worker have: noted where an open failed, told by the control thread.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use base::sync::Mutex;
use rustix::event::EventfdFlags;
use rustix::fs::{AtFlags, CWD};

/// Paths that wait to be told, and paths that are remembered as told; further ones are dropped.
const MAX_PATHS: usize = 256;

/// Does this process stand in a sandbox?
static ENTERED: AtomicBool = AtomicBool::new(false);
static NOTED: OnceLock<Noted> = OnceLock::new();

struct Noted {
    wake: OwnedFd,
    paths: Mutex<Paths>,
}

#[derive(Default)]
struct Paths {
    waiting: Vec<PathBuf>,
    told: HashSet<PathBuf>,
}

/// Begins to note refusals.
pub(super) fn begin() {
    // Without the descriptor nothing is told.
    let Ok(wake) = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
        return;
    };
    NOTED.get_or_init(|| Noted {
        wake,
        paths: Mutex::default(),
    });
    ENTERED.store(true, Ordering::Release);
}

/// An open has failed with `error`; if the sandbox is why, that will be told. Cheap where there is no sandbox or another
/// error, and never waits for a device.
pub fn note(path: &Path, error: &io::Error) {
    let refused = error.raw_os_error() == Some(libc::EACCES);
    if !refused || !ENTERED.load(Ordering::Relaxed) || !path.is_absolute() {
        return;
    }
    let Some(noted) = NOTED.get() else { return };
    let mut paths = noted.paths.lock();
    if paths.waiting.len() >= MAX_PATHS || paths.waiting.iter().any(|known| known == path) {
        return;
    }
    paths.waiting.push(path.to_path_buf());
    drop(paths);
    // It is full only when nobody has looked for very long.
    let _ = rustix::io::write(&noted.wake, &1_u64.to_ne_bytes());
}

/// The refusals of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refusals;

impl Refusals {
    /// What becomes readable when there are some. `None` outside of a sandbox.
    pub fn descriptor(self) -> Option<BorrowedFd<'static>> {
        NOTED.get().map(|noted| noted.wake.as_fd())
    }

    /// The paths that the sandbox has refused since the last call: those that were not told before, and whether there were any.
    pub fn take(self) -> (Vec<PathBuf>, bool) {
        let Some(noted) = NOTED.get() else {
            return (Vec::new(), false);
        };
        let mut bytes = [0; 8];
        // Empty when somebody has taken them already.
        let _ = rustix::io::read(&noted.wake, &mut bytes);
        let mut paths = noted.paths.lock();
        let mut waiting = std::mem::take(&mut paths.waiting);
        // The modes of a file are no business of Landlock, nor Landlock of this call: it tells the two apart.
        waiting.retain(|path| {
            rustix::fs::accessat(CWD, path, rustix::fs::Access::READ_OK, AtFlags::EACCESS).is_ok()
                || rustix::fs::accessat(CWD, path, rustix::fs::Access::EXISTS, AtFlags::EACCESS)
                    == Err(rustix::io::Errno::NOENT)
        });
        let any = !waiting.is_empty();
        let room = MAX_PATHS.saturating_sub(paths.told.len());
        waiting.truncate(room);
        waiting.retain(|path| paths.told.insert(path.clone()));
        (waiting, any)
    }
}
