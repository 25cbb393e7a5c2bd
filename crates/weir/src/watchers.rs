//! Reporting the outcome of a signal to the command that sent it.
//!
//! ```text
//! command   connects to the master's socket ─▶ sends the signal ─▶ waits
//! master    acts ─▶ sends the outcome to all that are connected
//! ```
//!
//! `weir -s reload` would be done once the signal is sent, and only the error log would say whether
//! the configuration was accepted. So the master listens on a socket in Linux's abstract namespace,
//! named by its process number. A command connects before it sends the signal, and is told the
//! outcome of the next action: a message whose first byte is `0` or `1` (an exit code), followed by
//! lines for standard error. Nothing is ever read from the socket, and only root and the master's
//! own user get an answer.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use host::abstract_socket;
use host::process;

/// The maximum number of waiting commands.
const MAX_WATCHERS: usize = 16;

/// The maximum length of an outcome, in bytes. Longer ones are cut; the error log has everything.
const MAX_OUTCOME: usize = 32 * 1024;

/// The master's side.
pub(crate) struct SignalWatchers {
    /// `None` where abstract sockets do not exist: then nothing is reported.
    socket: Option<OwnedFd>,
    /// The commands that are waiting.
    waiting: Vec<OwnedFd>,
}

impl SignalWatchers {
    /// Listens under this process's number.
    pub(crate) fn new() -> SignalWatchers {
        SignalWatchers {
            socket: abstract_socket::listen(&name(std::process::id())).ok(),
            waiting: Vec::new(),
        }
    }

    /// For a process that is not a master.
    pub(crate) fn none() -> SignalWatchers {
        SignalWatchers {
            socket: None,
            waiting: Vec::new(),
        }
    }

    /// Becomes readable when a command connects.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|socket| socket.as_fd())
    }

    /// Accepts the waiting commands.
    pub(crate) fn accept_waiting(&mut self) {
        let Some(socket) = &self.socket else { return };
        while let Ok((watcher, user)) = abstract_socket::accept(socket) {
            let trusted = user == 0 || user == process::user_id();
            // Any other connection is closed by being dropped; its command then reports that the server did not
            // answer.
            if trusted && self.waiting.len() < MAX_WATCHERS {
                self.waiting.push(watcher);
            }
        }
    }

    /// Reports the outcome to all waiting commands.
    pub(crate) fn report(&mut self, outcome: &ActionOutcome) {
        // A command connects before it sends its signal, so it may still be in the queue of the socket.
        self.accept_waiting();
        let mut message = vec![if outcome.done { b'0' } else { b'1' }];
        let lines = outcome.lines.as_bytes();
        message.extend_from_slice(&lines[..lines.len().min(MAX_OUTCOME)]);
        for watcher in self.waiting.drain(..) {
            // A command that is gone does not want to know.
            let _ = abstract_socket::send(&watcher, &message);
        }
    }
}

/// The outcome of an action.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ActionOutcome {
    /// Whether it succeeded.
    pub(crate) done: bool,
    /// Lines about it, each with a line feed.
    pub(crate) lines: String,
}

/// The command's side of the socket.
pub(crate) struct MasterWatch(OwnedFd);

impl MasterWatch {
    /// Connects to the master with this number, to learn the outcome of the next signal. `None` if
    /// it reports none, as nginx.
    pub(crate) fn new(master: u32) -> Option<MasterWatch> {
        let (socket, peer) = abstract_socket::connect(&name(master)).ok()?;
        // Any process can take the name, but not the process number of the listener, which the
        // kernel knows.
        (peer == master).then_some(MasterWatch(socket))
    }

    /// Waits for the outcome; `None` if it does not come in time, or the master is gone.
    pub(crate) fn outcome(self, patience: Duration) -> io::Result<Option<ActionOutcome>> {
        let ready = process::wait_readable(&[self.0.as_fd()], Some(patience))?;
        if !ready[0] {
            return Ok(None);
        }
        let mut buffer = [MaybeUninit::uninit(); MAX_OUTCOME + 1];
        let message = abstract_socket::receive(&self.0, &mut buffer)?;
        let Some((code, lines)) = message.split_first() else {
            return Ok(None);
        };
        Ok(Some(ActionOutcome {
            done: *code == b'0',
            lines: String::from_utf8_lossy(lines).into_owned(),
        }))
    }
}

/// The name of a master's socket. The process number makes it unique on the machine.
fn name(master: u32) -> String {
    format!("weir master {master}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_told() {
        let mut watchers = SignalWatchers::new();
        let watch = MasterWatch::new(std::process::id()).expect("it listens");
        let outcome = ActionOutcome {
            done: false,
            lines: "weir: [emerg] no\n".to_owned(),
        };
        watchers.report(&outcome);
        let told = watch.outcome(Duration::from_secs(10)).expect("readable");
        assert_eq!(told, Some(outcome));
        assert!(
            MasterWatch::new(1).is_none(),
            "process 1 is no master of ours"
        );
    }
}
