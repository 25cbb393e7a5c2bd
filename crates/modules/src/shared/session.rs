//! What the shared mechanisms need of an http request or a stream session.

use std::fmt;
use std::net::IpAddr;

use bstr::{BStr, BString, ByteSlice};
use conf::{Definition, Diagnostic, Line, Node, Pattern, Registry, Scope};
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

/// The texts that have line ends in them, which are few.
pub(crate) fn of_several_lines<'a>(texts: impl Iterator<Item = &'a BStr>) -> Vec<BString> {
    texts
        .filter(|text| Registry::<()>::is_noted(text))
        .map(BStr::to_owned)
        .collect()
}

/// Defines the variable that word `index` of a block's line names. `texts` are values [of several
/// lines](of_several_lines) that the block gives it.
pub(crate) fn define<S: Session>(
    line: &mut Line,
    index: usize,
    definition: Definition<S>,
    texts: &[BString],
) -> Result<(), Diagnostic> {
    let name = line.variable_name(index)?;
    let registry = line.level.registry::<S>().expect(ITS_ENGINE);
    for text in texts {
        registry.note_text(name, text);
    }
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

const ITS_ENGINE: &str = "the row stands in the engine whose sessions it is for";

fn register<S: Session>(
    line: &mut Line,
    name: &str,
    definition: Definition<S>,
) -> Result<(), String> {
    let registry = line.level.registry::<S>().expect(ITS_ENGINE);
    registry.define(name, definition).map(drop)
}
