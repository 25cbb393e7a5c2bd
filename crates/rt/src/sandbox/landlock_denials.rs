//! Files that Landlock denies to the worker: recorded where an open fails, reported by the control thread.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use base::sync::Mutex;
use rustix::event::EventfdFlags;
use rustix::fs::{AtFlags, CWD};

/// How many paths may wait to be reported, and how many are remembered as reported; others are dropped.
const MAX_PATHS: usize = 256;

/// Whether this process is in a sandbox.
static ENTERED: AtomicBool = AtomicBool::new(false);
static NOTED: OnceLock<DenialLog> = OnceLock::new();

struct DenialLog {
    wake: OwnedFd,
    paths: Mutex<DeniedPaths>,
}

#[derive(Default)]
struct DeniedPaths {
    waiting: Vec<PathBuf>,
    reported: HashSet<PathBuf>,
}

/// Starts to record denials.
pub(super) fn start_noting() {
    // Without the descriptor nothing is reported.
    let Ok(wake) = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
        return;
    };
    NOTED.get_or_init(|| DenialLog {
        wake,
        paths: Mutex::default(),
    });
    ENTERED.store(true, Ordering::Release);
}

/// Records that an open has failed with `error`, if the sandbox may be why. It costs little without a sandbox or
/// for other errors, and never blocks on a device.
pub fn note_denied(path: &Path, error: &io::Error) {
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
    // It is full only if the control thread has not read for very long.
    let _ = rustix::io::write(&noted.wake, &1_u64.to_ne_bytes());
}

/// The refusals of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct LandlockDenials;

impl LandlockDenials {
    /// A descriptor that becomes readable when there are some. `None` outside a sandbox.
    pub fn descriptor(self) -> Option<BorrowedFd<'static>> {
        NOTED.get().map(|noted| noted.wake.as_fd())
    }

    /// The paths that the sandbox has denied since the last call and that were not reported before, and whether
    /// there were any denials.
    pub fn take_denied(self) -> (Vec<PathBuf>, bool) {
        let Some(noted) = NOTED.get() else {
            return (Vec::new(), false);
        };
        let mut bytes = [0; 8];
        // Empty if they were taken already.
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
        let room = MAX_PATHS.saturating_sub(paths.reported.len());
        waiting.truncate(room);
        waiting.retain(|path| paths.reported.insert(path.clone()));
        (waiting, any)
    }
}
