//! What the project's tools share: other programs, packages that are missing, flags.

#![forbid(unsafe_code)]

pub mod flags;
pub mod packages;
pub mod shell;

/// A task's result: what went wrong, in words for the person at the terminal.
pub type Outcome = Result<(), String>;
