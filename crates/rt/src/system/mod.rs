//! System calls about processes that the standard library lacks, made safe.
//!
//! What takes a line of `unsafe` is here, beside the runtime, so that no crate above needs one; what the calls are for
//! (a master, a worker, a sandbox) is not this module's business. Functions that need a process of one thread say so
//! and check it.

mod program;
mod shared_counters;
mod signals;
mod title;
mod users;

use std::io;

pub use program::execute;
pub use shared_counters::SharedCounters;
pub use signals::{ReceivedSignal, SignalDescriptor};
pub use title::{set_environment, set_title};
pub use users::{SystemUser, become_user, is_root, lookup_user, user_id};

/// Which side of a [`fork`] this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkSide {
    /// The process that called; the number is the child's.
    Parent(u32),
    /// The new process.
    Child,
}

/// Makes a copy of this process.
///
/// Fails with `EBUSY` when the process has more than one thread: the child would have only the
/// calling one, and locks that the others held would stay locked in it for ever.
pub fn fork() -> io::Result<ForkSide> {
    require_one_thread()?;
    // SAFETY: the process has exactly one thread (checked above), so no lock is held by a thread
    // that the child lacks, and the child may run any code.
    // JUSTIFICATION: the worker inherits open logs and sockets and starts without an exec; the
    // standard library has no fork.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(ForkSide::Child),
        child => Ok(ForkSide::Parent(child.unsigned_abs())),
    }
}

pub(crate) fn require_one_thread() -> io::Result<()> {
    match has_one_thread() {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EBUSY)),
    }
}

/// Whether this thread is the only one of the process.
pub fn has_one_thread() -> bool {
    // Without /proc the promise in this module's contract has to do.
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count) == 1
}

/// Takes a descriptor that the program that started this one has left open at `number`, and closes it
/// at exec from now on. An error when there is none.
///
/// To be called once for a number, before anything else in the process opens descriptors.
pub fn inherit(number: i32) -> io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd as _;
    if number <= 2 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: takes numbers only. JUSTIFICATION: what comes in by number cannot be had as a safe value.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above says that the descriptor is open, and by this function's contract nothing
    // in this process owns it. JUSTIFICATION: as above.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(number) })
}

/// Gives memory that is free back to the system. The allocator keeps what was freed, which after something that is done
/// once, as reading a configuration, is far more than is ever used again.
pub fn give_memory_back() {
    crate::heap::give_back();
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number only, and locks what it works on.
    // JUSTIFICATION: without it a server of 20 MB has 100 MB after the first sample of a stack.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fork_is_refused_with_threads() {
        // The test harness itself runs threads.
        let (ready, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv());
        assert!(fork().is_err());
        drop(ready);
        let _ = thread.join().expect("the thread does not panic");
    }
}
