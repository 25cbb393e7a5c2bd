//! `worker_sandbox_path`: what the configuration grants a worker beyond what its directives need.

use std::path::PathBuf;

use conf::{Arity, Diagnostic, DirectiveLine};

/// The kind of access that `worker_sandbox_path` grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathAccess {
    /// The worker may read it.
    Read,
    /// The worker may write it, or create files in it.
    Write,
    /// The worker may run it.
    Execute,
}

/// The number of its parameters.
pub(crate) const ARITY: Arity = Arity::at_least(2);

/// Parses `worker_sandbox_path`.
pub(crate) fn read_path(line: &DirectiveLine) -> Result<Vec<(PathAccess, PathBuf)>, Diagnostic> {
    let how = match line.word(0, &["read", "write", "execute"])? {
        0 => PathAccess::Read,
        1 => PathAccess::Write,
        _ => PathAccess::Execute,
    };
    let path = |word| (how, line.prefix_path(conf::PathUse::Opened, word));
    Ok(line.args()[1..].iter().map(path).collect())
}
