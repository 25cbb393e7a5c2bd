//! What the shared mechanisms need of an http request or a stream session.

use std::fmt;
use std::net::IpAddr;

use bstr::{BString, ByteSlice};
use conf::{Definition, Diagnostic, Line, Node, Pattern, Scope};
use rt::error_log;

/// A request or a session: something that has variables and a client.
pub(crate) trait Session: Scope + Sized + 'static {
    /// Matches; on a match the groups are what `$1` and the named variables stand for.
    fn matches(&mut self, pattern: &Pattern, subject: &[u8]) -> bool;

    /// The client's address; `None` for a unix socket.
    fn client(&self) -> Option<IpAddr>;

    /// The values of `X-Forwarded-For` in the order in which they came; none where there is no such thing.
    fn forwarded_for(&self) -> Vec<BString>;

    /// Writes a line about it to the error log.
    fn log(&self, level: error_log::Level, message: fmt::Arguments<'_>);
}

/// Defines the variable that word `index` of a block's line names.
pub(crate) fn define<S: Session>(
    line: &mut Line,
    index: usize,
    definition: Definition<S>,
) -> Result<(), Diagnostic> {
    let name = line.variable_name(index)?;
    register(line, name, definition).map_err(|message| line.error_at(index, message))
}

/// Defines the variable that a row of a block begins with.
pub(crate) fn define_as<S: Session>(
    line: &mut Line,
    entry: &Node,
    definition: Definition<S>,
) -> Result<(), Diagnostic> {
    let word = &entry.name;
    let name = word.text.strip_prefix(b"$").filter(|name| !name.is_empty());
    let Some(name) = name.and_then(|name| name.to_str().ok()) else {
        return Err(entry.error_at(word, format!("invalid variable name \"{}\"", word.text)));
    };
    register(line, name, definition).map_err(|message| entry.error_at(word, message))
}

fn register<S: Session>(
    line: &mut Line,
    name: &str,
    definition: Definition<S>,
) -> Result<(), String> {
    let registry = line
        .level
        .registry::<S>()
        .expect("the row stands in the engine whose sessions it is for");
    registry.define(name, definition).map(drop)
}
