//! What a configuration needs from the system while it runs: what a worker in a sandbox must keep.
//!
//! No module can forget to declare it. A relative path can only be resolved by [`crate::ConfigurationBuild`],
//! which asks for the kind of access; unix sockets are seen in the words of directives; and machine
//! code comes from regular expressions and from modules that declare it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use base::ByteSlice;

use crate::parse;
use crate::tree::DirectiveNode;

/// How a path of the configuration is used while serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathUse {
    /// Not at all: it is read as part of the configuration, through [`crate::FileSource`], or opened by
    /// the master.
    Opened,
    /// It is read.
    Read,
    /// It is written to, or what is in it.
    Write,
    /// It is a directory that requests look in; written to as well if a module says so
    /// ([`SystemNeeds::changes_roots`]).
    Root,
}

/// The needs of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemNeeds {
    /// Files and folders that are read.
    pub read: BTreeSet<PathBuf>,
    /// Files and folders that are changed.
    pub write: BTreeSet<PathBuf>,
    /// Folders that requests look in.
    pub roots: BTreeSet<PathBuf>,
    /// Requests may change what is in those folders.
    pub changes_roots: bool,
    /// A unix socket is named somewhere, or scripts may name one.
    pub unix_sockets: bool,
    /// Machine code is made while running.
    pub executable_memory: bool,
    /// `transparent` stands somewhere: packets have addresses that are not the machine's.
    pub transparent: bool,
}

/// What an address that is a UNIX domain socket contains.
const UNIX: &[u8] = b"unix:";
const TRANSPARENT: &[u8] = b"transparent";

impl SystemNeeds {
    /// Adds an absolute path.
    pub(crate) fn add(&mut self, path_use: PathUse, path: PathBuf) {
        let set = match path_use {
            PathUse::Opened => return,
            PathUse::Read => &mut self.read,
            PathUse::Write => &mut self.write,
            PathUse::Root => &mut self.roots,
        };
        // Without a trailing slash: different spellings of a path are the same.
        set.insert(path.components().collect());
    }

    /// Adds the needs of a part.
    pub fn merge(&mut self, part: &SystemNeeds) {
        self.read.extend(part.read.iter().cloned());
        self.write.extend(part.write.iter().cloned());
        self.roots.extend(part.roots.iter().cloned());
        self.changes_roots |= part.changes_roots;
        self.unix_sockets |= part.unix_sockets;
        self.executable_memory |= part.executable_memory;
        self.transparent |= part.transparent;
    }

    /// Inspects all words of a configuration.
    pub fn read_words(&mut self, nodes: &[DirectiveNode]) {
        for node in nodes {
            self.read_words_of(node);
        }
    }

    fn read_words_of(&mut self, node: &DirectiveNode) {
        for word in std::iter::once(&node.name).chain(&node.args) {
            self.unix_sockets |= word.text.contains_str(UNIX);
            self.transparent |= word.text == TRANSPARENT;
        }
        let block = &node.block;
        if block.may_contain(UNIX) || block.may_contain(TRANSPARENT) {
            for line in block.lines() {
                self.read_words_of(&line);
            }
        }
    }
}

/// The directory that contains every path that a text with variables can become, relative to
/// `prefix`. What the variables add is not considered: with `..` in it, it may lead elsewhere, and
/// is denied then.
pub(crate) fn literal_folder(text: &[u8], prefix: &Path) -> PathBuf {
    let Some(variable) = text.iter().position(|byte| *byte == b'$') else {
        return prefix.join(parse::path(text));
    };
    let slash = text[..variable].iter().rposition(|byte| *byte == b'/');
    match slash {
        Some(slash) => prefix.join(parse::path(&text[..=slash])),
        // A variable's value may begin with a slash.
        None if variable == 0 => PathBuf::from("/"),
        None => prefix.to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_variables_stays_in_its_literal_folder() {
        for (text, folder) in [
            ("/srv/$host/x", "/srv/"),
            ("/srv/a$host", "/srv/"),
            ("sites/$host", "/p/sites/"),
            ("a$host", "/p"),
            ("$root", "/"),
            ("/srv/site", "/srv/site"),
            ("html", "/p/html"),
        ] {
            assert_eq!(
                literal_folder(text.as_bytes(), Path::new("/p")),
                Path::new(folder),
                "{text}"
            );
        }
    }
}
