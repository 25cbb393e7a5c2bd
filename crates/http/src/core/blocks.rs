//! The connection between the engine's rows and the builder of the configuration.
//!
//! The builder is a layer above the tables. It hands down its functions for reading blocks, once for each `http {}`, so
//! that the tables import nothing of what is built from them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bstr::{BStr, BString};
use conf::{BlockConfs, Diagnostic, DirectiveLine, Span};

/// Reads a block, such as `server { … }`, into the settings of its parent.
type BlockReader = fn(&mut DirectiveLine, &mut BlockConfs) -> Result<(), Diagnostic>;

/// The builder's functions.
#[derive(Clone, Copy)]
pub(crate) struct BlockReaders {
    pub(crate) server: BlockReader,
    pub(crate) location: BlockReader,
    pub(crate) limit_except: BlockReader,
    pub(crate) present_location: fn(&mut DirectiveLine) -> PresentLocation,
}

/// The place where the builder leaves its functions.
#[derive(Default)]
pub(crate) struct HandedDown(pub(crate) Option<BlockReaders>);

/// The builder's functions, while a configuration is being read.
fn readers(line: &mut DirectiveLine) -> BlockReaders {
    let handed_down = line.lasting::<HandedDown>().0;
    handed_down.expect("the builder of `http {}` leaves its functions before it reads the block")
}

/// The setter of `server`.
pub(super) fn server(line: &mut DirectiveLine, parents: &mut BlockConfs) -> Result<(), Diagnostic> {
    (readers(line).server)(line, parents)
}

/// The setter of `location`.
pub(super) fn location(
    line: &mut DirectiveLine,
    parents: &mut BlockConfs,
) -> Result<(), Diagnostic> {
    (readers(line).location)(line, parents)
}

/// The setter of `limit_except`.
pub(super) fn limit_except(
    line: &mut DirectiveLine,
    parents: &mut BlockConfs,
) -> Result<(), Diagnostic> {
    (readers(line).limit_except)(line, parents)
}

/// The location that a directive is in.
pub(super) fn present_location(line: &mut DirectiveLine) -> PresentLocation {
    (readers(line).present_location)(line)
}

/// The kind of the location that a directive is in.
pub enum PresentLocation {
    /// A prefix of this many bytes, or an exact path of this length: `alias` replaces that part.
    Prefix(usize),
    /// A regular expression.
    Regex,
    /// A named location.
    Named,
}

/// Directories that must exist before the worker starts, collected while the configuration is read.
#[derive(Default)]
pub struct RequiredDirectories(pub BTreeSet<PathBuf>);

/// Names of thread pools that directives refer to, with the places. They are checked at the end: a pool may be defined
/// further down.
#[derive(Default)]
pub struct WantedPools(pub Vec<(BString, Span)>);

impl WantedPools {
    /// Notes that a directive refers to a pool.
    pub fn add_pool(&mut self, name: &BStr, span: Span) {
        self.0.push((name.to_owned(), span));
    }
}
