//! Whether a configuration differs from another one in more than the `server` blocks of `http`.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::tree::{BlockContent, DirectiveNode};

/// Identifies what stands outside of the blocks that can be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideHash {
    /// Two hashes, so that an accident is out of the question.
    hashes: (u64, u64),
    /// How many bytes its words have.
    pub size: usize,
}

/// Identifies everything of a configuration but its `server` blocks in `http`.
pub fn hash_outside(nodes: &[DirectiveNode]) -> OutsideHash {
    let mut size = 0;
    let mut hashers = (DefaultHasher::new(), DefaultHasher::new());
    hashers.1.write_u8(1);
    let mut write = |bytes: &[u8]| {
        bytes.hash(&mut hashers.0);
        bytes.hash(&mut hashers.1);
        size += bytes.len();
    };
    hash_nodes(nodes, 0, false, &mut write);
    OutsideHash {
        hashes: (hashers.0.finish(), hashers.1.finish()),
        size,
    }
}

fn hash_nodes(nodes: &[DirectiveNode], depth: usize, in_http: bool, write: &mut impl FnMut(&[u8])) {
    for node in nodes {
        if in_http && depth == 1 && node.name.is("server") {
            continue;
        }
        for word in std::iter::once(&node.name).chain(&node.args) {
            write(if word.quoted { b"q" } else { b"b" });
            write(&word.text);
        }
        match &node.block {
            BlockContent::None => write(b";"),
            BlockContent::Raw(word) => {
                write(b"raw");
                write(&word.text);
            }
            BlockContent::Nodes(inside) => {
                write(b"{");
                let in_http = in_http || depth == 0 && node.name.is("http");
                hash_nodes(inside, depth + 1, in_http, write);
                write(b"}");
            }
            // As text: lines that differ only in spaces or comments make a full reading, and a million lines are hashed
            // in no time.
            BlockContent::Long(block) => {
                write(b"{");
                block.texts().for_each(&mut *write);
                write(b"}");
            }
            BlockContent::Known(_) => write(b"known"),
        }
    }
}
