//! Reports system calls that the filter denies to another process.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};

/// `SECCOMP_IOCTL_NOTIF_RECV` and `SECCOMP_IOCTL_NOTIF_SEND`: `_IOWR('!', 0, struct seccomp_notif)` and so on.
const RECEIVE: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
const SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;

/// The end of a filter at which calls wait for a decision.
///
/// It belongs in a process that the filter does not apply to: its holder could permit any call.
#[derive(Debug)]
pub struct SeccompListener(OwnedFd);

/// A call that was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeniedCall {
    /// The thread that made it.
    pub thread: u32,
    /// Its number: see [`super::call_name`].
    pub number: libc::c_long,
    /// Its first argument, and its third.
    pub arguments: [u64; 2],
}

impl SeccompListener {
    /// The listener that a descriptor is.
    pub fn of(descriptor: OwnedFd) -> SeccompListener {
        SeccompListener(descriptor)
    }

    /// Denies a waiting call, if there is one. `Err` if no process is left that could make one. Never blocks.
    pub fn deny(&self) -> io::Result<Option<DeniedCall>> {
        // A receive would block until there is a call, and for ever once the process has ended.
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&Timespec::default()))?;
        let events = polled[0].revents();
        if !events.contains(PollFlags::IN) {
            return match events.is_empty() {
                true => Ok(None),
                false => Err(io::ErrorKind::BrokenPipe.into()),
            };
        }
        let mut request = std::mem::MaybeUninit::<libc::seccomp_notif>::zeroed();
        // SAFETY: the kernel fills a structure of this type, which is zeroed as it demands; the number names the type's size.
        // JUSTIFICATION: there is no safe form of it.
        let code = unsafe { libc::ioctl(self.0.as_raw_fd(), RECEIVE, request.as_mut_ptr()) };
        if code != 0 {
            let error = io::Error::last_os_error();
            // Its thread was killed meanwhile.
            return match error.raw_os_error() {
                Some(libc::ENOENT | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the call has succeeded, and any bits are a value of the type. JUSTIFICATION: as above.
        let request = unsafe { request.assume_init() };
        let answer = libc::seccomp_notif_resp {
            id: request.id,
            val: 0,
            error: -libc::EPERM,
            flags: 0,
        };
        // An error means that the thread is gone and needs no answer.
        // SAFETY: the kernel reads a structure of this type. JUSTIFICATION: as above.
        let _ = unsafe { libc::ioctl(self.0.as_raw_fd(), SEND, &raw const answer) };
        Ok(Some(DeniedCall {
            thread: request.pid,
            number: libc::c_long::from(request.data.nr),
            arguments: [request.data.args[0], request.data.args[2]],
        }))
    }
}

impl AsFd for SeccompListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
