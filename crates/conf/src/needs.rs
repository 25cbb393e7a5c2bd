//! What a configuration will need of the system while it serves: what a worker that locks itself in must keep.
//!
//! Nobody has to remember to say it. A relative path can be made whole only by [`crate::Build`], which asks what the path is
//! for; unix sockets are seen in the words of the directives; machine code comes from regular expressions, and from modules that
//! say so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::parse;
use crate::tree::Node;

/// What is done with a path of the configuration while serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: it is read as part of the configuration, through [`crate::Files`], or opened by the master.
    Opened,
    /// It is read.
    Read,
    /// It is changed, or what is in it.
    Write,
    /// It is a folder that requests look in; changed too, if some module says so ([`Needs::changes_roots`]).
    Root,
}

/// What is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
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

impl Needs {
    /// Takes note of a path that is whole.
    pub(crate) fn add(&mut self, access: Access, path: PathBuf) {
        let set = match access {
            Access::Opened => return,
            Access::Read => &mut self.read,
            Access::Write => &mut self.write,
            Access::Root => &mut self.roots,
        };
        // Without a slash at its end: two spellings of a path are one.
        set.insert(path.components().collect());
    }

    /// Takes note of the words of a whole configuration.
    pub fn read_words(&mut self, nodes: &[Node]) {
        for node in nodes {
            for word in std::iter::once(&node.name).chain(&node.args) {
                let mut windows = word.text.windows(b"unix:".len());
                self.unix_sockets |= windows.any(|window| window == b"unix:");
                self.transparent |= word.text == "transparent";
            }
            self.read_words(node.block.nodes());
        }
    }
}

/// The folder that every path lies in that a text with variables can become, under the folder that relative ones count from.
/// What the variables add is not looked at: with `..` in it, it may lead out, and is denied then.
pub(crate) fn literal_folder(text: &[u8], prefix: &Path) -> PathBuf {
    let Some(variable) = text.iter().position(|byte| *byte == b'$') else {
        return prefix.join(parse::path(text));
    };
    let slash = text[..variable].iter().rposition(|byte| *byte == b'/');
    match slash {
        Some(slash) => prefix.join(parse::path(&text[..=slash])),
        // What a variable holds may begin with a slash.
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
