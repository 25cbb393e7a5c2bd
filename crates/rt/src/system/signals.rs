//! Signals as something to read: blocked in the usual way, and taken from a descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// The kernel's number of it.
    pub number: u32,
    /// The process that sent it; 0 is the kernel, such as for the keyboard's Ctrl-C.
    pub sender: u32,
}

/// Blocked signals, readable.
pub struct SignalDescriptor(OwnedFd);

impl SignalDescriptor {
    /// Blocks the signals of these numbers for this thread and all it starts, and makes them readable here.
    pub fn block(numbers: &[i32]) -> io::Result<Self> {
        let set = signal_set(numbers);
        // SAFETY: `set` is an initialised signal set; the call only reads it, and the old mask is
        // not asked for.
        // JUSTIFICATION: the standard library has no signal masks.
        let code =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        // SAFETY: `set` is initialised; -1 asks for a new descriptor, which is owned below and by
        // nothing else. JUSTIFICATION: the standard library has no signalfd.
        let descriptor =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if descriptor == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and is valid.
        // JUSTIFICATION: as above.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Lets this thread be ended by the signals of these numbers again: for a child that must not outlive a Ctrl-C.
    pub fn unblock(numbers: &[i32]) -> io::Result<()> {
        let set = signal_set(numbers);
        // SAFETY: `set` is an initialised signal set; the call only reads it, and the old mask is
        // not asked for.
        // JUSTIFICATION: the standard library has no signal masks.
        match unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut())
        } {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }

    /// The next signal that has come, if any. Never waits.
    pub fn read_signal(&self) -> io::Result<Option<ReceivedSignal>> {
        loop {
            let mut info = std::mem::MaybeUninit::<libc::signalfd_siginfo>::zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            // SAFETY: the buffer is valid for `size` bytes, and the kernel writes whole entries only.
            // JUSTIFICATION: reading into a C struct keeps its layout in one place.
            let read = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
            if read == -1 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(None),
                    io::ErrorKind::Interrupted => continue,
                    _ => Err(error),
                };
            }
            // SAFETY: all zero bytes are a valid value of this plain C struct, and a successful read
            // has overwritten them. JUSTIFICATION: as above.
            let info = unsafe { info.assume_init() };
            return Ok(Some(ReceivedSignal {
                number: info.ssi_signo,
                sender: info.ssi_pid,
            }));
        }
    }
}

impl AsFd for SignalDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn signal_set(numbers: &[i32]) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigemptyset initialises the set; sigaddset gets that set, and refuses a number that is none.
    // JUSTIFICATION: the layout of a signal set belongs to the C library.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in numbers {
            libc::sigaddset(set.as_mut_ptr(), *number);
        }
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_can_be_read() {
        let signals = SignalDescriptor::block(&[libc::SIGWINCH]).expect("signalfd");
        assert_eq!(signals.read_signal().expect("readable"), None);
        // To this thread: another thread of the test harness does not block it.
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        // SAFETY: tgkill takes numbers only. JUSTIFICATION: a test needs a directed signal.
        let code =
            unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, libc::SIGWINCH) };
        assert_eq!(code, 0);
        let received = signals
            .read_signal()
            .expect("readable")
            .expect("a signal came");
        assert_eq!(received.number, libc::SIGWINCH.unsigned_abs());
        assert_eq!(received.sender, std::process::id());
    }
}
