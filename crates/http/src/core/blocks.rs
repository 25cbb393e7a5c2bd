//! What rows of the engine's tables need of the builder that reads the blocks they stand in, and what they leave for it.
//!
//! The builder is above the tables: it hands its functions down, once for each `http {}`, so that the tables import nothing
//! of what is made of them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bstr::{BStr, BString};
use conf::{Confs, Diagnostic, Line, Span};

/// Reads a block of a certain name.
type BlockReader = fn(&mut Line, &mut Confs) -> Result<(), Diagnostic>;

/// The builder's functions.
#[derive(Clone, Copy)]
pub(crate) struct BlockReaders {
    pub(crate) server: BlockReader,
    pub(crate) location: BlockReader,
    pub(crate) limit_except: BlockReader,
    pub(crate) present_location: fn(&mut Line) -> PresentLocation,
}

/// Where the builder leaves them.
#[derive(Default)]
pub(crate) struct HandedDown(pub(crate) Option<BlockReaders>);

fn readers(line: &mut Line) -> BlockReaders {
    let handed_down = line.shared::<HandedDown>().0;
    handed_down.expect("the builder of `http {}` leaves its functions before it reads the block")
}

/// The setter of `server`.
pub(super) fn server(line: &mut Line, parents: &mut Confs) -> Result<(), Diagnostic> {
    (readers(line).server)(line, parents)
}

/// The setter of `location`.
pub(super) fn location(line: &mut Line, parents: &mut Confs) -> Result<(), Diagnostic> {
    (readers(line).location)(line, parents)
}

/// The setter of `limit_except`.
pub(super) fn limit_except(line: &mut Line, parents: &mut Confs) -> Result<(), Diagnostic> {
    (readers(line).limit_except)(line, parents)
}

/// The location that a directive stands in.
pub(super) fn present_location(line: &mut Line) -> PresentLocation {
    (readers(line).present_location)(line)
}

/// What kind of location the present one is, for directives that care.
pub enum PresentLocation {
    /// A prefix of this many bytes, or an exact path.
    Prefix(usize),
    /// A regular expression.
    Regex,
    /// A named location.
    Named,
}

/// Folders that must exist before the worker starts, collected while the configuration is read.
#[derive(Default)]
pub struct Directories(pub BTreeSet<PathBuf>);

/// Names of thread pools that directives asked for, with where.
#[derive(Default)]
pub struct WantedPools(pub Vec<(BString, Span)>);

impl WantedPools {
    /// Notes that a pool is wanted.
    pub fn want(&mut self, name: &BStr, span: Span) {
        self.0.push((name.to_owned(), span));
    }
}
