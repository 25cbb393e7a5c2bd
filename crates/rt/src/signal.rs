//! Signals as something to read.
//!
//! Master and worker block the signals they understand, in all threads, and read them from a
//! descriptor between other events. So no code ever runs inside a signal handler, and a signal that
//! arrives during a reload waits its turn.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// A signal that Weir acts on. The meaning is nginx's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// Reload the configuration.
    Hup,
    /// Reopen the logs.
    Usr1,
    /// Replace the binary.
    Usr2,
    /// Let the worker finish and do not start another.
    Winch,
    /// Stop when the requests under way have ended.
    Quit,
    /// Stop now.
    Term,
    /// Stop now; from the keyboard.
    Int,
    /// A child has ended.
    Child,
    /// End at once, whatever happens. Can be sent, never received.
    Kill,
}

impl Signal {
    /// Those that can be received.
    pub const ALL: [Signal; 8] = [
        Signal::Hup,
        Signal::Usr1,
        Signal::Usr2,
        Signal::Winch,
        Signal::Quit,
        Signal::Term,
        Signal::Int,
        Signal::Child,
    ];

    /// The kernel's number.
    pub const fn number(self) -> i32 {
        match self {
            Signal::Hup => libc::SIGHUP,
            Signal::Usr1 => libc::SIGUSR1,
            Signal::Usr2 => libc::SIGUSR2,
            Signal::Winch => libc::SIGWINCH,
            Signal::Quit => libc::SIGQUIT,
            Signal::Term => libc::SIGTERM,
            Signal::Int => libc::SIGINT,
            Signal::Child => libc::SIGCHLD,
            Signal::Kill => libc::SIGKILL,
        }
    }

    /// The name in log lines.
    pub const fn name(self) -> &'static str {
        match self {
            Signal::Hup => "SIGHUP",
            Signal::Usr1 => "SIGUSR1",
            Signal::Usr2 => "SIGUSR2",
            Signal::Winch => "SIGWINCH",
            Signal::Quit => "SIGQUIT",
            Signal::Term => "SIGTERM",
            Signal::Int => "SIGINT",
            Signal::Child => "SIGCHLD",
            Signal::Kill => "SIGKILL",
        }
    }

    fn from_number(number: u32) -> Option<Signal> {
        Signal::ALL
            .into_iter()
            .find(|signal| signal.number().unsigned_abs() == number)
    }
}

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Which one.
    pub signal: Signal,
    /// Who sent it; 0 is the kernel, such as for the keyboard's Ctrl-C.
    pub sender: u32,
}

/// Blocked signals, readable.
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks `signals` for this thread and all it starts, and makes them readable here.
    pub fn block(signals: &[Signal]) -> io::Result<Signals> {
        let set = signal_set(signals);
        // SAFETY: `set` is an initialised signal set; the call only reads it, and the old mask is
        // not asked for.
        // JUSTIFICATION: the standard library has no signal masks.
        let code =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        // SAFETY: `set` is initialised; -1 asks for a new descriptor, which is owned below and by
        // nobody else. JUSTIFICATION: the standard library has no signalfd.
        let descriptor =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if descriptor == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and is valid.
        // JUSTIFICATION: as above.
        Ok(Signals(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// The next signal that has come, if any. Never waits.
    pub fn next(&self) -> io::Result<Option<Received>> {
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
            if let Some(signal) = Signal::from_number(info.ssi_signo) {
                return Ok(Some(Received {
                    signal,
                    sender: info.ssi_pid,
                }));
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn signal_set(signals: &[Signal]) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigemptyset initialises the set, sigaddset gets that set and valid signal numbers.
    // JUSTIFICATION: the layout of a signal set belongs to the C library.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal.number());
        }
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_can_be_read() {
        let signals = Signals::block(&[Signal::Winch]).expect("signalfd");
        assert_eq!(signals.next().expect("readable"), None);
        // To this thread: another thread of the test harness does not block it.
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        // SAFETY: tgkill takes numbers only. JUSTIFICATION: a test needs a directed signal.
        let code =
            unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, libc::SIGWINCH) };
        assert_eq!(code, 0);
        let received = signals.next().expect("readable").expect("a signal came");
        assert_eq!(received.signal, Signal::Winch);
        assert_eq!(received.sender, std::process::id());
    }
}
