//! Telling who sent a signal what came of it.
//!
//! `weir -s reload` is over when the signal is sent; whether the configuration could be used, only the
//! error log tells. So the master listens on a socket in Linux's abstract namespace, named by its process
//! number. A command that wants to know connects before it signals, and is told the outcome of the next
//! action: a message whose first byte is `0` or `1` (an exit code), then lines for standard error.
//! Nothing is ever read from the socket, and only the master's own user and root get an answer.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rt::process;
use rt::watch;

/// Commands that may wait at the same time; more are not told.
const MAX_WATCHERS: usize = 16;

/// The longest outcome, in bytes; what is longer is cut, the error log has it all.
const MAX_OUTCOME: usize = 32 * 1024;

/// The master's side.
pub(crate) struct Watchers {
    /// `None` where abstract sockets are not to be had: then nobody is told.
    socket: Option<OwnedFd>,
    waiting: Vec<OwnedFd>,
}

impl Watchers {
    /// Listens under this process's number.
    pub(crate) fn new() -> Watchers {
        Watchers {
            socket: watch::listen(&name(std::process::id())).ok(),
            waiting: Vec::new(),
        }
    }

    /// For a process that is no master.
    pub(crate) fn none() -> Watchers {
        Watchers {
            socket: None,
            waiting: Vec::new(),
        }
    }

    /// Becomes readable when a command comes.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|socket| socket.as_fd())
    }

    /// Takes in those who wait to be told.
    pub(crate) fn admit(&mut self) {
        let Some(socket) = &self.socket else { return };
        while let Ok((watcher, user)) = watch::accept(socket) {
            let trusted = user == 0 || user == process::user_id();
            if trusted && self.waiting.len() < MAX_WATCHERS {
                self.waiting.push(watcher);
            }
        }
    }

    /// Tells everybody who waits.
    pub(crate) fn tell(&mut self, outcome: &Outcome) {
        self.admit();
        let mut message = vec![if outcome.done { b'0' } else { b'1' }];
        let lines = outcome.lines.as_bytes();
        message.extend_from_slice(&lines[..lines.len().min(MAX_OUTCOME)]);
        for watcher in self.waiting.drain(..) {
            // One that went away does not want to know.
            let _ = watch::send(&watcher, &message);
        }
    }
}

/// What came of an action.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// It was done.
    pub(crate) done: bool,
    /// Lines about it, each with its end.
    pub(crate) lines: String,
}

/// A command's side: what the master of this number will say.
pub(crate) struct Watch(OwnedFd);

impl Watch {
    /// Connects, to be told the outcome of what is signalled next. `None`: that master tells nobody, as
    /// when it is nginx.
    pub(crate) fn new(master: u32) -> Option<Watch> {
        let (socket, peer) = watch::connect(&name(master)).ok()?;
        // The name can be taken by anybody; the process number of who listens can not.
        (peer == master).then_some(Watch(socket))
    }

    /// Waits for the outcome; `None` when it does not come in time or the master has gone.
    pub(crate) fn outcome(self, patience: Duration) -> io::Result<Option<Outcome>> {
        let ready = process::wait_readable(&[self.0.as_fd()], Some(patience))?;
        if !ready[0] {
            return Ok(None);
        }
        let mut buffer = [MaybeUninit::uninit(); MAX_OUTCOME + 1];
        let message = watch::receive(&self.0, &mut buffer)?;
        let Some((code, lines)) = message.split_first() else {
            return Ok(None);
        };
        Ok(Some(Outcome {
            done: *code == b'0',
            lines: String::from_utf8_lossy(lines).into_owned(),
        }))
    }
}

fn name(master: u32) -> String {
    format!("weir master {master}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_told() {
        let mut watchers = Watchers::new();
        let watch = Watch::new(std::process::id()).expect("it listens");
        let outcome = Outcome {
            done: false,
            lines: "weir: [emerg] no\n".to_owned(),
        };
        watchers.tell(&outcome);
        let told = watch.outcome(Duration::from_secs(10)).expect("readable");
        assert_eq!(told, Some(outcome));
        assert!(Watch::new(1).is_none(), "process 1 is no master of ours");
    }
}
