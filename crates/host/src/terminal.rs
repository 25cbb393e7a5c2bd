//! The terminal of a command: whether there is one, its size, and keys without a line feed.

use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use rustix::termios::{OptionalActions, Termios};

use crate::process::wait_readable;

/// Whether standard input and output are terminals.
pub fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Columns and lines; a usual size if the terminal does not say.
pub fn window_size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// A terminal that passes on each key, Ctrl-C too, and shows none. Dropping it restores it.
pub struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Changes the terminal of standard input.
    pub fn enter() -> io::Result<RawTerminal> {
        let before = rustix::termios::tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(RawTerminal { before })
    }

    /// The next key, if one comes in this time; Ctrl-D at the end of the input.
    pub fn read_key(&self, patience: Duration) -> Option<u8> {
        let input = io::stdin();
        let input: BorrowedFd<'_> = input.as_fd();
        let ready = wait_readable(&[input], Some(patience)).ok()?;
        if !ready[0] {
            return None;
        }
        let mut key = [0; 1];
        match rustix::io::read(input, &mut key) {
            Ok(1..) => Some(key[0]),
            _ => Some(4),
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}
