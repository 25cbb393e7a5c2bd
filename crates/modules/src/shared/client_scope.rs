//! What the shared mechanisms need to know of an http request or a stream session.

use std::net::IpAddr;

use bstr::{BStr, BString, ByteSlice};
use conf::{
    CapturingPattern, Diagnostic, DirectiveLine, DirectiveNode, VariableDefinition,
    VariableRegistry, VariableScope,
};
use net::client::ConnectionEnds;

/// A request or a session: variables, a client and an error log. Small on purpose, since it is all
/// that `map`, `geo` and the other shared modules can depend on.
pub(crate) trait ClientScope: VariableScope + ConnectionEnds + Sized {
    /// Matches a pattern. On a match its groups become `$1` and so on, and its named groups set
    /// their variables.
    fn matches(&mut self, pattern: &CapturingPattern, subject: &[u8]) -> bool;

    /// The client's IP address; `None` on a unix socket.
    fn client(&self) -> Option<IpAddr> {
        self.remote().address.ip()
    }

    /// The values of `X-Forwarded-For` in the order they came in; empty in stream.
    fn forwarded_for(&self) -> Vec<BString>;
}

/// The struct of a directive that leaves nothing in its block: what it reads belongs to the
/// definition of a variable.
#[derive(Clone, Default)]
pub(crate) struct VariableOnly;

/// The texts that contain line ends. The registry notes them: such a line end comes from the
/// configuration and not from a client, so it need not be refused where a value becomes part of a
/// protocol.
pub(crate) fn multi_line_texts<'a>(texts: impl Iterator<Item = &'a BStr>) -> Vec<BString> {
    texts
        .filter(|text| VariableRegistry::<()>::is_noted(text))
        .map(BStr::to_owned)
        .collect()
}

/// Defines the variable named by word `index` of a block's line. `texts` are the values with line
/// ends that the block can give it ([`multi_line_texts`]).
pub(crate) fn define_variable<S: ClientScope>(
    line: &mut DirectiveLine,
    index: usize,
    definition: VariableDefinition<S>,
    texts: &[BString],
) -> Result<(), Diagnostic> {
    let name = line.variable_name(index)?;
    let registry = line.level.registry::<S>().expect(ITS_ENGINE);
    for text in texts {
        registry.note_text(name, text);
    }
    register(line, name, definition).map_err(|message| line.error_at(index, message))
}

/// Defines the variable that a line inside a block begins with.
pub(crate) fn define_entry_variable<S: ClientScope>(
    line: &mut DirectiveLine,
    entry: &DirectiveNode,
    definition: VariableDefinition<S>,
) -> Result<(), Diagnostic> {
    let word = &entry.name;
    let name = word.text.strip_prefix(b"$").filter(|name| !name.is_empty());
    let Some(name) = name.and_then(|name| name.to_str().ok()) else {
        return Err(entry.error_at(word, format!("invalid variable name \"{}\"", word.text)));
    };
    register(line, name, definition).map_err(|message| entry.error_at(word, message))
}

/// Why the registry of this type exists.
const ITS_ENGINE: &str = "the row stands in the engine whose sessions it is for";

/// Adds the definition to the engine's registry.
fn register<S: ClientScope>(
    line: &mut DirectiveLine,
    name: &str,
    definition: VariableDefinition<S>,
) -> Result<(), String> {
    let registry = line.level.registry::<S>().expect(ITS_ENGINE);
    registry.define(name, definition).map(drop)
}
