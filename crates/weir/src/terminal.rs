//! Text for the user who started the program, on standard output and standard error.
//!
//! The macros of the standard library panic when nobody reads any more, as in `weir -V 2>&1 | head -1`, and Rust ignores
//! SIGPIPE. A server whose terminal was closed must not end either, because it had something to say.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal as _, Write};

/// Writes to standard output what a command was asked for. Without a reader the command ends with success, as it has done
/// what was wanted; where the output cannot be written (a full disk) it says so and fails. Not for servers.
pub(crate) fn print_text(text: Arguments<'_>) {
    let mut stdout = io::stdout().lock();
    let Err(error) = stdout.write_fmt(text).and_then(|()| stdout.flush()) else {
        return;
    };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    report_line(format_args!(
        "weir: cannot write to standard output: {error}"
    ));
    std::process::exit(1);
}

/// [`print_text`] and a line feed.
pub(crate) fn print_line(text: Arguments<'_>) {
    print_text(format_args!("{text}\n"));
}

/// Writes to standard error. What cannot be written is lost: there is no better place to report it.
pub(crate) fn report_text(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// [`report_text`] and a line feed.
pub(crate) fn report_line(text: Arguments<'_>) {
    report_text(format_args!("{text}\n"));
}

/// Whether the terminal can do more than show one line after the other.
pub(crate) fn can_draw() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether standard output shows colours: a terminal, unless the user says no (<https://no-color.org>).
pub(crate) fn has_colours() -> bool {
    let is_wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    io::stdout().is_terminal() && is_wanted && can_draw()
}
