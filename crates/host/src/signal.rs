//! Signals, read from a descriptor.
//!
//! Master and worker block the signals they understand in all threads, and read them from a descriptor between
//! other events. So no code runs inside a signal handler, and a signal that arrives during a reload waits its turn.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rt::system::SignalDescriptor;

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
pub struct DeliveredSignal {
    /// Which one.
    pub signal: Signal,
    /// Who sent it; 0 is the kernel, such as for the keyboard's Ctrl-C.
    pub sender: u32,
}

/// Signals that nginx accepts without acting on them. Left alone they would end the process.
const IGNORED: [i32; 2] = [libc::SIGALRM, libc::SIGIO];

/// Blocked signals, readable.
pub struct SignalReader(SignalDescriptor);

impl SignalReader {
    /// Blocks `signals`, and those that are ignored, for this thread and all it starts, and makes them readable here.
    pub fn block(signals: &[Signal]) -> io::Result<SignalReader> {
        let numbers = signals.iter().map(|signal| signal.number());
        let numbers: Vec<i32> = numbers.chain(IGNORED).collect();
        Ok(SignalReader(SignalDescriptor::block(&numbers)?))
    }

    /// Lets this thread be ended by `signals` again.
    pub fn unblock(signals: &[Signal]) -> io::Result<()> {
        let numbers: Vec<i32> = signals.iter().map(|signal| signal.number()).collect();
        SignalDescriptor::unblock(&numbers)
    }

    /// The next signal that has come, if any. Never waits.
    pub fn read_signal(&self) -> io::Result<Option<DeliveredSignal>> {
        while let Some(received) = self.0.read_signal()? {
            if let Some(signal) = Signal::from_number(received.number) {
                return Ok(Some(DeliveredSignal {
                    signal,
                    sender: received.sender,
                }));
            }
        }
        Ok(None)
    }
}

impl AsFd for SignalReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
